"""Reads a model's default sampling parameters from generation_config.json or GGUF metadata."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.dialog import Sampling
from penstock.quant.gguf.gguf_file import GgufFile
from penstock.quant.json_file import read_json


class GenerationConfig(msgspec.Struct):
    """The keys of generation_config.json that the server uses."""

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    eos_token_id: int | list[int] | None = None

    def sampling(self) -> Sampling:
        """Return the model's default sampling parameters. Unless `do_sample` is true, only the
        repetition penalty is set."""
        if not self.do_sample:
            return Sampling(repetition_penalty=self.repetition_penalty)
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
        )


def read_generation_config(folder: Path) -> GenerationConfig:
    """Read generation_config.json in `folder`. If the file does not exist, all fields are None."""
    path = folder / "generation_config.json"
    return read_json(path, GenerationConfig) if path.exists() else GenerationConfig()


def gguf_sampling_defaults(file: GgufFile) -> Sampling:
    """Return the sampling parameters under `general.sampling.*`, which newer converters copy from
    generation_config.json."""

    def real(key: str) -> float | None:
        return file.real(key) if key in file.metadata else None

    top_k = "general.sampling.top_k"
    return Sampling(
        temperature=real("general.sampling.temp"),
        top_k=file.integer(top_k) if top_k in file.metadata else None,
        top_p=real("general.sampling.top_p"),
        min_p=real("general.sampling.min_p"),
        repetition_penalty=real("general.sampling.penalty_repeat"),
    )
