"""Grammars: what a client or a tool asks an answer to match, compiled by llguidance into token
masks."""
