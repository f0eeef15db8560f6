"""Configuration code shared by model families: reads config.json and GGUF metadata into the
DecoderSpec of a Llama-like decoder or the EncoderSpec of a BERT-like encoder."""
