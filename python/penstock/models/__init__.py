"""Models: their sources, files, configurations and weights, and the forward passes over the ops."""
