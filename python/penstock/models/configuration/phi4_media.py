"""Reads the keys of Phi-4-multimodal's towers."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.vision_config import HfVision, vision_of
from penstock.models.towers.phi4_audio_spec import Phi4AudioSpec


class VisionConfig(msgspec.Struct):
    """The keys of `vision_config`, with the defaults of transformers'
    Phi4MultimodalVisionConfig."""

    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_hidden_layers: int = 27
    num_attention_heads: int = 16
    image_size: int = 448
    patch_size: int = 14
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6
    crop_size: int = 448
    image_token_id: int = 200_010
    feature_layer: int = -2

    def tower(self, where: str, root: str) -> HfVision:
        """Return the transformer up to the layer whose states are used, which is counted from the
        end. Raises ModelError that starts with `where`."""
        layers = self.num_hidden_layers + 1 + self.feature_layer
        if not 1 <= layers <= self.num_hidden_layers:
            raise ModelError(
                f"{where}: feature_layer must be a negative number that names a layer, not"
                f" {self.feature_layer}"
            )
        keys = {name: getattr(self, name) for name in self.__struct_fields__}
        vision = vision_of({"model_type": "siglip_vision_model", **keys}, where, (root,))
        return replace(vision, spec=replace(vision.spec, layers=layers, final_norm=False))


class AudioConfig(msgspec.Struct):
    """The keys of `audio_config`, with the defaults of transformers'
    Phi4MultimodalAudioConfig."""

    hidden_size: int = 1024
    intermediate_size: int = 1536
    num_blocks: int = 24
    num_attention_heads: int = 16
    activation: str = "swish"
    chunk_size: int = -1
    ext_pw_out_channel: int = 1024
    depthwise_separable_out_channel: int = 1024
    depthwise_multiplier: int = 1
    kernel_size: int = 3
    conv_activation: str = "swish"
    input_size: int = 80
    conv_glu_type: str = "swish"
    time_reduction: int = 8
    bias_max_distance: int = 1000
    bias_symmetric: bool = False
    nemo_activation: str = "relu"
    nemo_conv_channels: int = 1024
    downsample_rate: int = 1
    audio_token_id: int = 200_011

    def spec(self, outputs: int, where: str) -> Phi4AudioSpec:
        """Return the sizes of the tower. `outputs`: the width of the language model. Raises
        ModelError that starts with `where` and names the key at fault."""
        halvings = self.time_reduction.bit_length() - 1
        fixed = {
            "activation": "swish",
            "conv_activation": "swish",
            "conv_glu_type": "swish",
            "nemo_activation": "relu",
            "chunk_size": -1,
            "depthwise_multiplier": 1,
            "downsample_rate": 1,
            "bias_symmetric": False,
            "ext_pw_out_channel": self.hidden_size,
            "depthwise_separable_out_channel": self.hidden_size,
            "time_reduction": 1 << max(halvings, 1),
        }
        for key, expected in fixed.items():
            if getattr(self, key) != expected:
                raise ModelError(f"{where}: {key} must be {expected}, not {getattr(self, key)!r}")
        spec = Phi4AudioSpec(
            layers=self.num_blocks,
            width=self.hidden_size,
            heads=self.num_attention_heads,
            intermediate=self.intermediate_size,
            mels=self.input_size,
            halvings=halvings,
            channels=self.nemo_conv_channels,
            kernel=self.kernel_size,
            farthest=self.bias_max_distance,
            outputs=outputs,
        )
        spec.check(where)
        return spec
