"""Small random models that embed texts and images into one space, with their tokenizers."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

from tests.support.vision_models import VISION, randomized

TEXTS = (
    "a cat",
    "A Cat, a dog!",
    "  two   cats\non a mat  ",
    "!?",
    "it's the dog's day " * 2,
)
SQUARE = {"height": 28, "width": 28}
_TEXT = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "vocab_size": 64,
    "max_position_embeddings": 60,
}
_LETTERS = string.ascii_lowercase


def clip_tokenizer() -> Any:
    """Return the tokenizer of CLIP. A character that it lacks becomes an end token."""
    ends = [f"{letter}</w>" for letter in _LETTERS]
    more = ["!</w>", "?</w>", ",</w>", "'", "ca", "cat</w>"]
    merges: Any = [("c", "a"), ("ca", "t</w>")]
    vocab = [*_LETTERS, *ends, *more, "<|startoftext|>", "<|endoftext|>"]
    return transformers.CLIPTokenizer(
        vocab={token: index for index, token in enumerate(vocab)},
        merges=merges,
        unk_token="<|endoftext|>",
    )


def gemma_tokenizer() -> Any:
    """Return the tokenizer of SigLIP 2."""
    merges: Any = [("▁", "c"), ("▁c", "a"), ("▁ca", "t")]
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    vocab = [*special, "▁", *_LETTERS, "!", ",", "?", "'", "▁c", "▁ca", "▁cat", "A", "C"]
    return transformers.Siglip2Tokenizer(
        vocab={token: index for index, token in enumerate(vocab)},
        merges=merges,
        add_eos_token=True,
    )


def sentence_pieces() -> tokenizers.Tokenizer:
    """Return a tokenizer like SigLIP's tokenizer.json, without the cleaning of texts."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("▁", -3.0), ("▁cat", -1.0)]
    pieces += [(character, -4.0) for character in _LETTERS + string.punctuation[:20]]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def write_clip(folder: Path, activation: str = "quick_gelu") -> Any:
    """Save a CLIP and return its model."""
    tokenizer = clip_tokenizer()
    text = _TEXT | {"hidden_act": activation, "eos_token_id": tokenizer.eos_token_id}
    images = VISION | {"hidden_act": activation}
    config = transformers.CLIPConfig(text_config=text, vision_config=images, projection_dim=24)
    pixels = transformers.CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size=SQUARE)
    return _saved(folder, transformers.CLIPModel(config), pixels, tokenizer)


def write_siglip(folder: Path) -> Any:
    """Save a SigLIP, whose tokenizer removes punctuation, and return its model."""
    config = transformers.SiglipConfig(
        text_config=_TEXT | {"projection_size": 32}, vision_config=VISION
    )
    pixels = transformers.SiglipImageProcessorPil(size=SQUARE)
    model = _saved(folder, transformers.SiglipModel(config), pixels)
    sentence_pieces().save(str(folder / "tokenizer.json"))
    return model


def write_siglip2(folder: Path) -> Any:
    """Save a SigLIP 2 for images of any proportions and return its model."""
    vision = VISION | {"num_patches": 16}
    del vision["image_size"]
    config = transformers.Siglip2Config(
        text_config=_TEXT | {"projection_size": 32}, vision_config=vision
    )
    pixels = transformers.Siglip2ImageProcessorPil(patch_size=7, max_num_patches=30)
    return _saved(folder, transformers.Siglip2Model(config), pixels, gemma_tokenizer())


def write_fixed_siglip2(folder: Path) -> Any:
    """Save a SigLIP 2 for images of fixed size and return its model: a SigLIP with the tokenizer of
    Gemma, which pads on the right."""
    model = write_siglip(folder)
    tokenizer = gemma_tokenizer()
    tokenizer.padding_side = "right"
    tokenizer.save_pretrained(folder)
    return model


def _saved(folder: Path, model: Any, *processors: Any) -> Any:
    model.config._attn_implementation = "eager"
    torch.manual_seed(0)
    randomized(model).save_pretrained(folder)
    for processor in processors:
        processor.save_pretrained(folder)
    return model


def text_vector(model: Any, ids: list[int]) -> torch.Tensor:
    """Return the vector of a sequence with transformers, of length 1."""
    with torch.no_grad():
        found: torch.Tensor = model.get_text_features(input_ids=torch.tensor([ids])).pooler_output
    return torch.nn.functional.normalize(found)[0]
