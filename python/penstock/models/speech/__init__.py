"""Files of speech models."""
