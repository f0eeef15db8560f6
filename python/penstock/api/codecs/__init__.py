"""The dialects. Each decodes a request body into a `GenerateRequest` and encodes events into
answers.

Codecs import only `api.schema`, `dialog` and `base`, so their tests run without an engine.
"""
