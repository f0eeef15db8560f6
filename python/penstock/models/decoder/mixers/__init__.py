"""Mixers: the blocks that replace attention in some layers of a decoder, one file per kind."""
