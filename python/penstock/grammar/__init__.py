"""Grammars that an answer must match, compiled by llguidance into token masks."""
