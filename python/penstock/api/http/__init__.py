"""The HTTP layer below the routes: connections, bodies, event streams, errors."""
