"""`penstock bench`: measures the engine alone, without HTTP and tokenization."""

from __future__ import annotations

from typing import Annotated, Any, Final, Optional

import typer

from penstock.cli.settings_parameters import CommandSettings, with_settings

PANEL: Final = "Benchmark"


def _count(help: str, *flags: str, least: int = 1) -> Any:
    return typer.Option(*flags, min=least, metavar="N", help=help, rich_help_panel=PANEL)


@with_settings()
def bench(
    parsed: CommandSettings,
    prompt_len: Annotated[
        int, _count("Prompt length in tokens.", "--input-len", "--prompt-len")
    ] = 512,
    gen_len: Annotated[
        int, _count("Generated tokens per sequence.", "--output-len", "--gen-len", least=2)
    ] = 128,
    streams: Annotated[int, _count("Concurrent sequences.", "--batch-size", "--streams")] = 1,
    iterations: Annotated[int, _count("Measured runs.", "--num-iters", "--iterations")] = 3,
    warmup: Annotated[
        int, _count("Unmeasured runs before.", "--num-iters-warmup", "--warmup", least=0)
    ] = 1,
    adapter: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--adapter",
            help="Alias of the LoRA adapter to use; --lora loads it.",
            rich_help_panel=PANEL,
        ),
    ] = None,
) -> None:
    """Measure the speed of a model on this machine."""
    from rich.console import Console

    from penstock.base.errors import ModelError
    from penstock.cli.engine_benchmark import measure, speed_table
    from penstock.cli.local_model import local_model

    settings = parsed.one_engine()
    with local_model(settings) as (loop, model):
        context = model.engine.info.max_model_len
        if prompt_len + gen_len > context:
            raise ModelError(
                f"{prompt_len} + {gen_len} tokens exceed the context of {context};"
                " reduce --input-len or --output-len, or raise --max-model-len"
            )
        revision = "" if adapter is None else model.adapters.resolve(adapter)
        measured = [
            loop.run_until_complete(measure(model.engine, prompt_len, gen_len, streams, revision))
            for _ in range(warmup + iterations)
        ]
    title = f"{model.name}: {streams} x ({prompt_len} in + {gen_len} out), {iterations} iterations"
    Console().print(speed_table(title, measured[warmup:]))
