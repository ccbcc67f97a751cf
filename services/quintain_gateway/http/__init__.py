"""What all endpoints share: authentication, request bodies and headers, errors, limits and the OpenAPI document."""
