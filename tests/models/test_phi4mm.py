"""Phi-4-multimodal as Microsoft publishes it is the same model as in transformers' form."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tower_runner import encode_with

from penstock.models.checkpoint.renamed_checkpoint import RenamedCheckpoint
from penstock.models.families.phi4mm import tensor_name
from penstock.models.families.registry import media_spec_of_folder
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from penstock.models.media.prepared import Sound
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder
from tests.support.checkpoints.small_phi4_multimodal import write_small_phi4_multimodal
from tests.support.speech.audio_models import RATE, sound

PUBLISHED = {
    ".gate_up_proj.": ".net.0.linear.",
    ".down_proj.": ".net.2.",
    ".q_proj.": ".linear_q.",
    ".k_proj.": ".linear_k.",
    ".v_proj.": ".linear_v.",
    ".o_proj.": ".linear_out.",
    "img_projection_up.": "img_projection.0.",
    "img_projection_down.": "img_projection.2.",
    "global_img_feature_extensor": "glb_GN",
    "sub_img_feature_extensor": "sub_GN",
    "up_proj_for_speech": "audio_projection.speech.0",
    "down_proj_for_speech": "audio_projection.speech.2",
    "up_proj_for_vision_speech": "audio_projection.vision.0",
    "down_proj_for_vision_speech": "audio_projection.vision.2",
}
"""Parts of the names in transformers -> in the published weights."""


def published_name(name: str) -> str:
    if ".layers." in name and ".embed_tokens_extend." not in name and "_proj." in name:
        return name.replace(".weight", ".base_layer.weight")
    for own, other in PUBLISHED.items():
        if "img_processor" not in name:
            name = name.replace(own, other)
    return name


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folder of transformers' class, and the same model as it is published."""
    own = write_small_phi4_multimodal(tmp_path_factory.mktemp("phi4"))
    other = tmp_path_factory.mktemp("phi4mm") / "m"
    shutil.copytree(own, other)
    tensors = {
        published_name(name): one for name, one in load_file(own / "model.safetensors").items()
    }
    factor = np.zeros((4, 64), np.float32)
    tensors["model.layers.0.self_attn.qkv_proj.lora_A.speech.weight"] = factor
    save_file(tensors, other / "model.safetensors")
    (other / "config.json").write_text(json.dumps(published(own)))
    return own, other


def published(own: Path) -> dict[str, Any]:
    """Return the keys of config.json as they are published."""
    keys = json.loads((own / "config.json").read_text())
    audio = keys.pop("audio_config")
    renamed = {
        "attention_dim": audio.pop("hidden_size"),
        "attention_heads": audio.pop("num_attention_heads"),
        "linear_units": audio.pop("intermediate_size"),
        "depthwise_seperable_out_channel": audio.pop("depthwise_separable_out_channel"),
        "nemo_conv_settings": {"conv_channels": audio.pop("nemo_conv_channels")},
        "relative_attention_bias_args": {"t5_bias_max_distance": audio.pop("bias_max_distance")},
    }
    keys |= {"architectures": ["Phi4MMForCausalLM"], "model_type": "phi4mm"}
    keys["audio_processor"] = {"config": audio | renamed, "name": "cascades"}
    keys["img_processor"] = keys.pop("vision_config")
    return keys


def test_towers_and_tokens_are_those_of_the_other_form(folders: tuple[Path, Path]) -> None:
    own, other = map(media_spec_of_folder, folders)
    assert own is not None and other is not None
    assert other.towers == own.towers
    assert [mode.adapter for mode in other.modes] == [
        folders[1] / name for name in ("vision-lora", "speech-lora")
    ]
    assert set(other.processor.placeholders.values()) == {"<|endoftext10|>", "<|endoftext11|>"}
    image = np.random.default_rng(0).integers(0, 255, (60, 448, 3)).astype(np.uint8)
    renamed = RenamedCheckpoint(SafetensorsFolder(folders[1]), tensor_name)
    for media in (own.processor.image(image), own.processor.audio(Sound(sound(9000), RATE))):
        expected = encode_with(own, SafetensorsFolder(folders[0]), media).rows
        assert np.array_equal(encode_with(other, renamed, media).rows, expected)


def test_the_language_model_is_that_of_the_other_form(folders: tuple[Path, Path]) -> None:
    own, other = (load_model(files_at(folder, "phi4"), "f32") for folder in folders)
    assert own.spec == other.spec
    for first, second in zip(own.weights.layers(), other.weights.layers(), strict=True):
        np.testing.assert_array_equal(first.qkv.parts[0].data, second.qkv.parts[0].data)  # type: ignore[union-attr]
        np.testing.assert_array_equal(first.down.parts[0].data, second.down.parts[0].data)  # type: ignore[union-attr]
