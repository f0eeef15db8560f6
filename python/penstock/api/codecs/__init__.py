"""The dialects: each decodes a body into a GenerateRequest and encodes events into an answer.

Codecs import `api.schema`, `dialog` and `base`, so that their tests need no engine.
"""
