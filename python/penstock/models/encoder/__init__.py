"""Encoders (BERT and others): spec, tensor names, weights, forward pass, pooling and classifier."""
