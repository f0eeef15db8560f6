"""Opens a model's files, as a whole model or as the shard of one tensor parallel rank."""
