"""Health checks and Prometheus metrics of a running service, and the HTTP server that exposes them."""
