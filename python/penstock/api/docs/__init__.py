"""The served OpenAPI document."""
