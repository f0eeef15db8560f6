"""Facts about this machine and this build, and checks whether they can serve. Knows no HTTP."""
