"""Opens the files of a model, whole or as the shard of one tensor-parallel rank."""
