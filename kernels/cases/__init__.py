"""Inputs of the cases of ops: random inputs, and their layout on a GPU."""
