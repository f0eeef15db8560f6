"""Generates the OpenAPI document."""
