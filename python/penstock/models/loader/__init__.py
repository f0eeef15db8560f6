"""From the files of a model to a loaded model, whole or one tensor-parallel rank's shard of it."""
