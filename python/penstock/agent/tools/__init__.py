"""The tools that the server runs. One file per tool."""
