"""HTTP below the routes: connections, bodies, event streams, errors."""
