"""Model families, one file each, and the registry that finds them.

To add a model:

1. Copy the file of the family that is closest to it: `llama.py`, `qwen3_moe.py` for a mixture of
   experts, `bert.py` for an encoder. The file's name is the family's.
2. `Config`: the keys of config.json that the model reads and that `HfConfig` lacks, and the
   defaults in which its config class in transformers differs from Llama's. The registry refuses
   keys of `configuration/unsupported_keys.py` unless `Config` reads them.
3. `spec`: start from `decoder_spec`, and override the fields of the `DecoderSpec` in which the
   model differs. A difference that no field can express needs a new field, and code for it in
   `decoder/decoder.py`.
4. `gguf_spec`: the same from GGUF metadata, if llama.cpp converts the model. Without differences
   from `gguf_decoder_spec` it is not needed.
5. `NAMES`: the tensor names, if they differ from `HF_NAMES` or `GGUF_NAMES`.
6. `FAMILY`: the one statement that registers all this under the architectures of config.json and
   of GGUF. The registry imports every file of this folder: there is no list to extend.
7. A case in `tests/models/test_decoder.py`, which compares the logits with those of transformers,
   and in `tests/models/test_config_defaults.py` for the defaults.
"""
