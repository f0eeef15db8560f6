"""The msgspec types of request and answer bodies.

Codecs decode request bodies with these types, OpenAPI is generated from them, and tests check
answers against them. An absent field and null mean the same. Unknown fields are ignored unless a
type forbids them.
"""
