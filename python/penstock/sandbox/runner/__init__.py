"""Programs that run outside the server: in the tools' Python, in and before the sandbox."""
