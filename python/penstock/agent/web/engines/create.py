"""Creates the configured search engine."""

from __future__ import annotations

from penstock.agent.web.engines.brave import BraveEngine
from penstock.agent.web.engines.ddgs_engine import DdgsEngine
from penstock.agent.web.engines.engine import SearchEngine
from penstock.agent.web.engines.searxng import SearxngEngine
from penstock.config import SearchSettings, SettingsError


def create_engine(settings: SearchSettings) -> SearchEngine:
    """Return the search engine of the settings. Raises SettingsError for a setting or a package
    that the engine lacks."""
    match settings.engine:
        case "ddgs":
            return DdgsEngine()
        case "searxng":
            if not settings.url:
                raise SettingsError(
                    "[agent.search] url is missing: SearXNG needs the base URL of an instance, "
                    "such as http://127.0.0.1:8080"
                )
            return SearxngEngine(settings.url, settings.api_key)
        case "brave":
            if not settings.api_key:
                raise SettingsError(
                    "[agent.search] api_key is missing: the Brave Search API needs a key"
                )
            return BraveEngine(settings.api_key, settings.url)
