"""Fetches what a client's URL names, and nothing that only this machine can reach."""

from penstock.fetch.addresses import AllowList
from penstock.fetch.fetcher import Fetched, Fetcher, FetchLimits

__all__ = ["AllowList", "FetchLimits", "Fetched", "Fetcher"]
