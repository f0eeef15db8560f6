"""The endpoints, each an ASGI application over Services."""
