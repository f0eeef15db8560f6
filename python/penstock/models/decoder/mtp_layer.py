"""Finds the MTP head of a model, and describes it as a decoder of one layer."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.decoder.mtp_spec import MtpSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.tensor_names import TensorNames


def with_mtp(spec: DecoderSpec, names: TensorNames) -> DecoderSpec:
    """Return `spec` with the MTP head that files of its family may have, if there is one. Its layer
    is like the last layer without a recurrent state. Only the first head of a file with several is
    used."""
    if names.mtp is None or not (spec.predicting_layers or names.mtp.root):
        return spec
    alike = [index for index, layer in enumerate(spec.layers) if _has_cache(layer)]
    return replace(spec, mtp=MtpSpec(alike[-1])) if alike else spec


def mtp_decoder(spec: DecoderSpec) -> DecoderSpec:
    """Return the spec of the layer and the norm of the MTP head of a model, as a decoder."""
    assert spec.mtp is not None
    layer = spec.layers[spec.mtp.like]
    return replace(spec, layers=(layer,), mtp=None, predicting_layers=0)


def _has_cache(layer: LayerSpec) -> bool:
    if layer.blocks != "both":
        return False
    return layer.mixer is None or (layer.mixer.cache is not None and layer.mixer.state is None)
