"""`python -m bench media peers`: images and recordings beside other engines."""
