"""The socket between API processes and an engine process."""
