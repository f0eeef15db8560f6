"""Reads weight files and converts weights exactly into the layouts of the kernels.

This package knows no models: a checkpoint is a set of names, shapes and numbers.
"""
