"""The endpoints: ASGI applications, built from the Services."""
