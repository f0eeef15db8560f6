"""Finds settings for a model on this machine: the size and the speed of its weights in each type,
and the greatest context. The weights themselves are not read: sizes follow from headers, and the
speed from layers with random weights.

Used by `penstock tune` and by `POST /v1/models/tune`.
"""
