"""Searches the web and reads pages.

`web_tools.WebTools` makes the two tools of a request from a search engine (`engines`), a reader of
pages (`pages`) and a ranking of passages (`ranking`). Results and pages are untrusted: their texts
are cleaned and cut before the model sees them, and every URL that comes from them or from the model
is fetched under the rules of `penstock.fetch`.
"""
