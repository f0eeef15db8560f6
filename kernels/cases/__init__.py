"""The inputs of ops' cases: random ones, and as a GPU holds them."""
