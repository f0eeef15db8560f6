"""Prompts with images have the tokens of the processors of transformers: template, placeholder,
expansion, and the text around it."""

from __future__ import annotations

import asyncio
import json
from io import BytesIO
from typing import Any

import pytest
import transformers
from PIL import Image as PillowImage

from penstock.dialog import GenerateRequest, Image, Message, Text
from penstock.generation.media.loader import MediaLoader
from penstock.generation.prompt.builder import PromptBuilder
from penstock.models.loader.media import media_spec
from penstock.models.tokenizer.tokenizer_data import TokenType
from penstock.text import ChatTemplate
from tests.support.checkpoints.tiny_tokenizer import tiny_data, tiny_tokenizer
from tests.support.media.small_processor import PillowDecoder, png
from tests.support.servers.http_server import files_at
from tests.support.vision_models import TEXT, VISION
from tests.unit.text.test_media_templates import GEMMA3, LLAVA, SMOLVLM

BREAKS = ["\n\n", "\n\n\n", "\n\n\n\n"]
FAMILIES: dict[str, dict[str, Any]] = {
    "Gemma3": {
        "template": GEMMA3,
        "config": {"mm_tokens_per_image": 4},
        "vision": {"image_size": 28},
        "images": ("Gemma3ImageProcessorPil", {"size": {"height": 28, "width": 28}}),
        "processor": {"image_seq_length": 4},
        "tokens": {
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
    },
    "Llava": {
        "template": LLAVA,
        "config": {},
        "vision": {"model_type": "clip_vision_model", "projection_dim": 32},
        "images": (
            "CLIPImageProcessorPil",
            {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}},
        ),
        "processor": {
            "patch_size": 7,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
        "tokens": {"image_token": "<image>"},
    },
    "Idefics3": {
        "template": SMOLVLM,
        "config": {"scale_factor": 2},
        "vision": {"image_size": 28},
        "images": (
            "Idefics3ImageProcessorPil",
            {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28}},
        ),
        "processor": {"image_seq_len": 4},
        "tokens": {
            "image_token": "<image>",
            "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>",
            "end_of_utterance_token": "<end_of_utterance>",
            **{f"row_{r}_{c}": f"<row_{r}_{c}>" for r in (1, 2) for c in (1, 2)},
        },
    },
}
TALKS: dict[str, list[list[Any]]] = {
    "image first": [[(60, 40), "What is it?"]],
    "image last": [["What is it?\n", (60, 40)]],
    "several": [["a", (60, 40), (20, 90), "b"], ["ok"], ["And ", (31, 33), "\n\nthis?"]],
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, template, processor of transformers)."""
    name, facts = request.param, FAMILIES[request.param]
    folder = tmp_path_factory.mktemp(name)
    plain, tokens = tiny_data(), facts["tokens"]
    words = [*dict.fromkeys(tokens.values())]
    types = [TokenType.CONTROL] * len(words) + [TokenType.USER_DEFINED] * len(BREAKS)
    tokenizer = tiny_tokenizer(
        tokens=[*plain.tokens, *words, *BREAKS],
        token_types=[*plain.token_types, *map(int, types)],
    )
    (folder / "tokenizer.json").write_text(tokenizer.serialize())
    special = {"eos_token": "<|im_end|>", "extra_special_tokens": tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    ids = {f"{key}_id": tokenizer.added_tokens[text] for key, text in tokens.items()}
    config = getattr(transformers, f"{name}Config")(
        text_config=TEXT | {"vocab_size": tokenizer.vocab_size},
        vision_config=VISION | facts["vision"],
        **facts["config"],
        **{key: ids[key] for key in ("image_token_id", "boi_token_id") if key in ids},
    )
    config.architectures = [f"{name}ForConditionalGeneration"]
    config.save_pretrained(folder)
    images, options = facts["images"]
    template = facts["template"].strip()
    processor = getattr(transformers, f"{name}Processor")(
        image_processor=getattr(transformers, images)(**options),
        tokenizer=transformers.PreTrainedTokenizerFast.from_pretrained(folder),
        chat_template=template,
        **facts["processor"],
    )
    processor.save_pretrained(folder)
    return folder, tokenizer, template, processor


def talk_of(turns: list[list[Any]]) -> list[tuple[str, list[Any]]]:
    """Return (role, parts) of each turn. A pair of numbers is the size of an image."""
    roles = ("user", "assistant")
    return [(roles[index % 2], parts) for index, parts in enumerate(turns)]


def expected(processor: Any, turns: list[list[Any]]) -> list[int]:
    """Return the tokens that the processor of transformers makes."""
    messages = []
    for role, parts in talk_of(turns):
        content = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "image", "image": PillowImage.open(BytesIO(png(*part)))}
            for part in parts
        ]
        messages.append({"role": role, "content": content})
    encoded = processor.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=True
    )
    ids = encoded["input_ids"]
    return list(ids[0] if isinstance(ids[0], list) else ids)


@pytest.mark.parametrize("talk", TALKS)
def test_prompts_have_the_tokens_of_transformers(family: Any, talk: str) -> None:
    folder, tokenizer, template, theirs = family
    spec = media_spec(files_at(folder, "m"))
    assert spec is not None
    turns = TALKS[talk]
    messages = tuple(
        Message(
            role,  # type: ignore[arg-type]
            tuple(Text(p) if isinstance(p, str) else Image(data=png(*p)) for p in parts),
        )
        for role, parts in talk_of(turns)
    )
    request = GenerateRequest(messages=messages)
    decoder = PillowDecoder(spec.processor)  # type: ignore[arg-type]
    loaded = asyncio.run(MediaLoader(spec.processor, decoder, None).load(request))
    ours = ChatTemplate(template, placeholders=spec.processor.placeholders)
    builder = PromptBuilder(tokenizer, ours, spec.processor)
    (prompt,) = builder.build(request, 4096, tokenizer.vocab_size, loaded)
    wanted = expected(theirs, turns)
    text = b"".join(map(tokenizer.token_bytes, prompt.token_ids)).decode()
    assert text == b"".join(map(tokenizer.token_bytes, wanted)).decode()
    assert list(prompt.token_ids) == wanted
    assert len(prompt.media) == sum(not isinstance(p, str) for parts in turns for p in parts)
