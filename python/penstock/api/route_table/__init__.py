"""The route table: one entry per operation. The routes and the OpenAPI document are built from
it."""
