"""Inputs of the test cases of ops: random inputs, and their conversion to the layout of a GPU."""
