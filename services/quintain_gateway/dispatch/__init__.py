"""Makes the calls of an HTTP request and writes their results as one JSON body or as a stream."""
