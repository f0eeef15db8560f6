"""`penstock tune`: measures which types of weights fit and how fast they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Optional

import typer

from penstock.base.errors import ModelError
from penstock.cli.model_names import model_names
from penstock.cli.output import JSON_OPTION, print_json
from penstock.cli.settings_parameters import DEFAULT_MODEL_HELP
from penstock.cli.tune_report import print_report
from penstock.config import EngineSettings, read_environment

if TYPE_CHECKING:
    from penstock.tune.types import TuneModelResponse

Model = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(help=DEFAULT_MODEL_HELP, autocompletion=model_names),
]
Profile = Annotated[
    Literal["quality", "balanced", "fast"],
    typer.Option(
        help="quality: the smallest loss. balanced: the fastest type that is at least good."
        " fast: the fastest that is at least acceptable."
    ),
]
MaxModelLen = Annotated[
    int,
    typer.Option(
        "--max-model-len", "--max-seq-len", min=1, metavar="N", help="Tokens of a sequence."
    ),
]
Batch = Annotated[
    int,
    typer.Option(
        "--max-batch-size",
        min=1,
        metavar="N",
        help="Sequences of this length for which the KV cache has room.",
    ),
]
Quantization = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--quantization",
        "-q",
        "--isq",
        metavar="TYPE",
        help="Tune this type only; none: the weights as stored.",
        show_default="all types",
    ),
]
Dtype = Annotated[str, typer.Option(help="auto or float32, as for serve.")]
Cpu = Annotated[bool, typer.Option("--cpu", help="Tune for the CPU even if there is a GPU.")]
Threads = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(min=1, metavar="N", help="Compute threads.", show_default="all cores"),
]
Images = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--max-num-images", min=1, metavar="N", help="Images in a prompt."),
]
ImageLength = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(
        "--max-image-length", min=1, metavar="N", help="Longest side of an image in pixels."
    ),
]
Revision = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help="Branch, tag or commit on the Hugging Face hub."),
]
TokenSource = Annotated[
    str,
    typer.Option(
        metavar="SOURCE",
        help="Token for the hub: cache (HF_TOKEN or a login), none, literal:TOKEN, env:NAME"
        " or path:FILE.",
    ),
]
EmitConfig = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(metavar="FILE", help="Write the recommended settings for `serve --config`."),
]


def tune(
    model: Model = None,
    profile: Profile = "balanced",
    max_model_len: MaxModelLen = 4096,
    batch: Batch = 1,
    quantization: Quantization = None,
    dtype: Dtype = "auto",
    cpu: Cpu = False,
    threads: Threads = None,
    images: Images = None,
    image_length: ImageLength = None,
    revision: Revision = None,
    token_source: TokenSource = "cache",
    emit_config: EmitConfig = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Measure the types of weights of a model and recommend settings."""
    from penstock.tune.job import run_job
    from penstock.tune.outcome import TuneJob
    from penstock.tune.types import TuneModelRequest

    name = model or EngineSettings().model
    request = TuneModelRequest(
        model_id=name,
        profile=profile,
        cpu=cpu,
        dtype=dtype,
        hf_revision=revision,
        max_batch_size=batch,
        max_image_length=image_length,
        max_num_images=images,
        max_seq_len=max_model_len,
        requested_isq=quantization,
        token_source=token_source,
    )
    job = TuneJob(request, EngineSettings(model=name, threads=threads), name)
    found = run_job(job, read_environment())
    if emit_config is not None:
        _write_config(found, emit_config)
    if as_json:
        print_json(found)
        return
    print_report(found)
    if emit_config is not None:
        typer.echo(f"  penstock serve --config {emit_config}")


def _write_config(found: TuneModelResponse, file: Path) -> None:
    """Write the recommended settings as a settings file. Raises ModelError if there are none."""
    from penstock.tune.recommended_settings import settings_file

    if found.recommended_settings is None:
        raise ModelError(f"{found.model_id} does not fit, so {file} is not written")
    file.write_text(settings_file(found.recommended_settings), encoding="utf-8")
