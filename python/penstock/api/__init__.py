"""The HTTP side: routes, codecs, metrics, access log, and the server around them."""
