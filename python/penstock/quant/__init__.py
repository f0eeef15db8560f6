"""Weight formats: readers of files, and exact conversion into the layouts of the kernels.

Knows no models: here a checkpoint is a set of names, shapes and numbers.
"""
