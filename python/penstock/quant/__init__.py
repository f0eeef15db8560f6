"""Weight formats: the readers of files, and their exact conversion into the layouts of the kernels.

Knows nothing of models: a checkpoint is names, shapes and numbers here.
"""
