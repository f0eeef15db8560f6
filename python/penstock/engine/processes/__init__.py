"""The engine process, its supervisor, and the fleet of all engine processes of a server."""
