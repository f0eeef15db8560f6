"""Slow modules are not imported before they are needed."""

import subprocess
import sys

# Runs `penstock serve` up to the point where the engine process is spawned.
COMMAND_LINE = """
import sys
import penstock.cli.main as cli
import penstock.cli.serve as serve
serve.serve_settings = lambda settings: print(*sys.modules)
sys.argv = ["penstock", "serve", "--port", "0", "--max-seqs", "4"]
try:
    cli.main()
except SystemExit:
    pass
"""


def modules_after(program: str) -> set[str]:
    """Return the top-level packages that are loaded after `program`, which prints its modules'
    names."""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in run.stdout.split()}


def test_command_line_is_read_before_anything_slow_is_imported():
    loaded = modules_after(COMMAND_LINE)
    assert "penstock" in loaded
    assert not loaded & {"pydantic", "numpy", "asyncio", "sqlalchemy", "tokenizers", "starlette"}


def test_api_process_serves_before_the_store_is_loaded():
    loaded = modules_after("import sys, penstock.api.serving.process; print(*sys.modules)")
    assert "starlette" in loaded
    assert not loaded & {"sqlalchemy", "fsspec", "httpx", "pydantic", "rich", "llguidance"}


def test_engine_process_loads_no_grammar_library_before_a_constraint_comes():
    loaded = modules_after("import sys, penstock.engine.load; print(*sys.modules)")
    assert "numpy" in loaded
    assert not loaded & {"llguidance", "torch", "transformers", "starlette", "sqlalchemy", "jinja2"}
