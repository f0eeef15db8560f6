"""Fetches URLs that clients send, but only from public addresses unless the operator allows
others."""

from penstock.fetch.addresses import AllowList
from penstock.fetch.fetcher import Fetched, Fetcher, FetchLimits

__all__ = ["AllowList", "FetchLimits", "Fetched", "Fetcher"]
