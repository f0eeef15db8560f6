"""Search engines, one per file behind the interface in `engine`."""

from penstock.agent.web.engines.create import create_engine
from penstock.agent.web.engines.engine import Search, SearchEngine, SearchFailed

__all__ = ["Search", "SearchEngine", "SearchFailed", "create_engine"]
