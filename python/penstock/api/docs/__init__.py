"""The served OpenAPI description: the table of operations, and examples."""
