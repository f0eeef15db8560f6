"""Towers: encoders of images, videos and recordings, with their projectors to the width of the
language model, over the ops of a kernel backend."""
