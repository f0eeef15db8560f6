"""Model families: from a configuration (config.json or GGUF metadata) to a DecoderSpec or an
EncoderSpec."""
