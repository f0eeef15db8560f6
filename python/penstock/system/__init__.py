"""This machine and this build: facts, and checks whether they can serve. Knows no HTTP."""
