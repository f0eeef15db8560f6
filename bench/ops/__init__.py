"""Every op of the registry at the sizes of real models, beside what the machine can do at most."""
