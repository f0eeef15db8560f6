"""Describes this machine and this build, and checks whether they can run a server. Independent of
HTTP."""
