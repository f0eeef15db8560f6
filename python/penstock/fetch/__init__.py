"""Fetches the URLs of clients, but no address that is not public."""

from penstock.fetch.addresses import AllowList
from penstock.fetch.fetcher import Fetched, Fetcher, FetchLimits

__all__ = ["AllowList", "FetchLimits", "Fetched", "Fetcher"]
