"""The types of requests and answers.

Codecs decode bodies with them, and OpenAPI describes them. Tests hold answers to theirs.
An absent field and a null are the same; unknown fields are accepted and ignored.
"""
