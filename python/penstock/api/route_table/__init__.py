"""The route table: one entry per operation, from which routes and OpenAPI document are built."""
