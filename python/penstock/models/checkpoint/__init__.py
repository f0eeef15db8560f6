"""Functions that compare a checkpoint's tensors with a model's, and the expert layout of
gpt-oss."""
