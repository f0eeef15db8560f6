"""Encoders (BERT and others): spec, tensor names, weights, computation, pooling and classifier
layers."""
