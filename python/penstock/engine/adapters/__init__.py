"""LoRA adapters of an engine: the catalog of aliases, and the cache of adapter slots."""
