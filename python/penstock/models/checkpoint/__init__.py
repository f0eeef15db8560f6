"""What a model demands of a checkpoint: shapes, storage forms, and the order of gpt-oss's
experts."""
