"""The HTTP API: routes, codecs, metrics, access log, and the server that runs them."""
