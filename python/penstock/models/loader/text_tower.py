"""Opens the text tower of a model that embeds texts and images into one space (CLIP, SigLIP)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from penstock.base.errors import ModelError
from penstock.models.configuration.text_towers import tokenizer_config
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.encoder.text_tower import TEXT_POOLER, TextTower
from penstock.models.encoder.weights import EncoderWeights
from penstock.models.families import registry
from penstock.models.hub.model_files import ModelFiles, fingerprint
from penstock.models.loader.model_loader import LoadedEmbedder, tokenizer_files
from penstock.models.tokenizer.special_tokens import read_special_tokens
from penstock.models.tokenizer.tokenizer_data import EmbeddingParts, Padding
from penstock.quant.safetensors.folder_checkpoint import open_checkpoint


def has_text_tower(files: ModelFiles) -> bool:
    """Return whether a model embeds texts with a tower of its own. A folder without tokenizer.json
    embeds images only. Raises ModelError if the files cannot be read."""
    if files.kind != "folder" or not (files.path / "tokenizer.json").exists():
        return False
    return registry.text_tower_of_folder(files.path) is not None


def load_text_tower(files: ModelFiles, dtype: Literal["auto", "f32"]) -> LoadedEmbedder:
    """Open the text tower of a model for which `has_text_tower` is true. Raises ModelError as
    `load_model` does."""
    tower, spec = _tower(files)
    checkpoint = open_checkpoint(files.path, "bf16")
    names, expected = registry.hf_encoder_names(spec), tower.shapes(spec.hidden_size)
    weights = EncoderWeights(checkpoint, names, spec, dtype, expected)
    others = sum(
        info.size_bytes
        for name, info in checkpoint.tensors.items()
        if not name.startswith(names.prefixes) and name not in expected
    )
    return LoadedEmbedder(
        model_id=files.model_id,
        fingerprint=fingerprint(files),
        spec=spec,
        weights=weights,
        pooler=TEXT_POOLER,
        dense=(tower.read_projection(checkpoint),),
        extra_bytes=-others,
    )


def load_text_tower_parts(files: ModelFiles) -> EmbeddingParts:
    """Read the tokenizer of a model for which `has_text_tower` is true. Raises ModelError if a file
    is invalid."""
    tower, spec = _tower(files)
    special = read_special_tokens(files.path)
    padding = None
    if tower.padding is not None:
        side = tokenizer_config(files.path).padding_side or tower.padding.side
        padding = Padding(special.pad or tower.padding.token, spec.max_model_len, side)
    end_token = None if tower.end_token is None else special.eos or tower.end_token
    source = tokenizer_files(files, spec.vocab_size, tower.form)
    source = replace(source, padding=padding, end_token=end_token)
    return EmbeddingParts(files.model_id, fingerprint(files), source, "", supports_lora=False)


def _tower(files: ModelFiles) -> tuple[TextTower, EncoderSpec]:
    tower = registry.text_tower_of_folder(files.path)
    spec = registry.embedding_spec_of_folder(files.path)
    if tower is None or not isinstance(spec, EncoderSpec):
        raise ModelError(f"{files.path}: the model has no text tower")
    return tower, spec
