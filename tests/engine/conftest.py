"""Puts the helpers of this folder on the import path of its subfolders."""
