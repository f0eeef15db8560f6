"""The shapes of requests and answers, as the served description tells them.

Codecs do not decode with these types: they name what is wrong with a field in their own words.
Tests hold the two together: a codec reads the fields that the type names, and answers match theirs.
An absent field and a null are the same; fields named nowhere are accepted and ignored.
"""
