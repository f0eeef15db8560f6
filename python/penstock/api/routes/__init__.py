"""The endpoints: ASGI applications that are built from the Services."""
