"""Model families, one per file, and the registry that finds them.

To add a model:
1. Copy the file of the closest family: `llama.py`, `qwen3_moe.py` for a mixture of experts,
   `bert.py` for an encoder. Name the file after the family.
2. `Config`: declare the keys of config.json that the model reads and that `HfConfig` lacks, and the
   defaults in which its config class in transformers differs from Llama's. The registry refuses
   keys of `configuration/unsupported_keys.py` unless `Config` declares them.
3. `spec`: start from `decoder_spec` and override the fields of the `DecoderSpec` in which the model
   differs. A difference that no field can express needs a new field, and code for it in
   `decoder/decoder.py`.
4. `gguf_spec`: do the same from GGUF metadata, if llama.cpp converts the model and its spec differs
   from that of `gguf_decoder_spec`.
5. `NAMES`: list the tensor names, if they differ from `HF_NAMES` or `GGUF_NAMES`.
6. `FAMILY`: register all this under the architectures of config.json and of GGUF. The registry
   imports every file of this folder; there is no list to extend.
7. Add a case to `tests/models/test_decoder.py`, which compares the logits with those of
   transformers, and to `tests/models/test_config_defaults.py` for the defaults.
"""
