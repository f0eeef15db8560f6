"""The MCP client: connections to servers that provide tools."""

from penstock.agent.mcp.config import McpConfig, parse_mcp_config, read_mcp_config
from penstock.agent.mcp.servers import McpServers, ServerStatus

__all__ = ["McpConfig", "McpServers", "ServerStatus", "parse_mcp_config", "read_mcp_config"]
