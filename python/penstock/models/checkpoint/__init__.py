"""Checks of a checkpoint's tensors, their storage forms, and the layout of gpt-oss's experts."""
