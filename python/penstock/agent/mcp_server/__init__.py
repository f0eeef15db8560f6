"""The MCP server: offers this server's model and tools to MCP clients."""

from penstock.agent.mcp_server.service import ChatMessage, McpService

__all__ = ["ChatMessage", "McpService"]
