"""Models: where they come from, what they are made of, and the decoders that compute them."""
