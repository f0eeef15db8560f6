"""The dialects of the wire: each decodes a body into a GenerateRequest and encodes events.

Codecs import `dialog` and `base` and nothing else, so that their tests need no engine.
"""
