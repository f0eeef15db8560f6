"""The parts of configurations that several model families share: keys of config.json and of GGUF
metadata, and the specs that a Llama-like decoder or a BERT-like encoder makes of them."""
