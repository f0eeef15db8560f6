"""Schema types of the Responses API."""
