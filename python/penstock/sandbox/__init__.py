"""Runs programs of tools under limits: namespaces, Landlock, seccomp and resource limits."""
