"""Tensor parallelism: the processes of the ranks and the messages between them."""
