"""Benchmarks of every op of the registry at the sizes of real models, beside the machine's
roofline."""
