"""Model loading and computation: download sources, file formats, configurations, weights and
forward passes."""
