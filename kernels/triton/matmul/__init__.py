"""Matrix products of linear layers, and their weights as Triton kernels read them."""
