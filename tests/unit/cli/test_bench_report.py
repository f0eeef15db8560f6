"""Reports of `penstock bench`: their figures, their files, and comparisons."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from penstock.cli import main as cli
from penstock.cli.bench import stream_counts
from penstock.cli.bench_plots import write_report
from penstock.cli.bench_report import Machine, Report, level, percentiles, read_report
from penstock.cli.engine_benchmark import Speed, token_gaps
from penstock.system.gpus import gpu_names

MACHINE = Machine("CPU", "Some <CPU>", 2, 2**33, "Linux", "6.1")


def report(*streams: int, factor: float = 1.0, machine: Machine = MACHINE) -> Report:
    """Return a report whose rates are `factor` times, and whose latencies are 1 / `factor` of, a
    fixed measurement."""
    speeds = [
        Speed((0.5 / factor, 0.7 / factor), (0.01 / factor,) * 99 + (0.1 / factor,), r, r / 10)
        for r in (100 * factor, 200 * factor, 600 * factor)
    ]
    levels = tuple(level(count, speeds) for count in streams)
    return Report(1_700_000_000, "1", machine, "some-model", "f", 32, 16, 3, levels)


def saved(path: Path, made: Report) -> str:
    write_report(made, path)
    return str(path)


def compared(*arguments: str) -> str:
    done = CliRunner().invoke(cli.app, ["bench", "--compare", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def refused(monkeypatch, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["penstock", "bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return str(ended.value.code)


def test_percentiles_are_values_of_the_sample():
    found = percentiles([float(value) for value in range(100, 0, -1)])
    assert (found.p50, found.p90, found.p95, found.p99) == (50, 90, 95, 99)
    assert set(msgspec.to_builtins(percentiles([7.0])).values()) == {7.0}


def test_a_level_has_the_spread_of_rates_and_the_percentiles_of_all_latencies():
    (found,) = report(4).levels
    rates = found.prefill_rate
    assert (rates.median, rates.min, rates.max) == (200, 100, 600)
    assert (found.first_token_s.p50, found.first_token_s.p99) == (0.5, 0.7)
    assert (found.token_s.p95, found.token_s.p99) == (0.01, 0.01)


def test_tokens_of_one_step_share_its_time():
    assert token_gaps([(1.0, 1), (1.5, 1), (2.5, 4)]) == [0.5, 0.25, 0.25, 0.25, 0.25]
    assert token_gaps([(1.0, 1)]) == []


def test_numbers_of_streams_are_a_list():
    assert stream_counts("1") == (1,) and stream_counts("1,2, 8,2") == (1, 2, 8)
    for wrong in ("", "0", "1,,2", "a", "-1"):
        with pytest.raises(typer.BadParameter):
            stream_counts(wrong)


def test_a_report_is_read_again(tmp_path):
    made = report(1, 2)
    assert read_report(Path(saved(tmp_path / "x.json", made))) == made


def test_a_page_needs_no_other_file_and_escapes_names(tmp_path):
    text = Path(saved(tmp_path / "x.html", report(1, 2, 4))).read_text()
    drawing = text[text.index("<svg") : text.index("</svg>") + len("</svg>")]
    ElementTree.fromstring(drawing)
    assert "Some &lt;CPU&gt;" in text and "Some <CPU>" not in text
    assert "<script" not in text and 'src="' not in text and "<td>4</td>" in text


def test_a_picture_is_a_png(tmp_path):
    content = Path(saved(tmp_path / "x.png", report(1, 2))).read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) > 10_000


def test_two_reports_are_compared_by_ratios(tmp_path):
    before = saved(tmp_path / "a.json", report(1, 2, 4))
    after = saved(tmp_path / "b.json", report(2, 4, 8, factor=1.5))
    ratios = json.loads(compared(before, after, "--json"))["ratios"]
    assert {ratio["streams"] for ratio in ratios} == {2, 4}
    assert {ratio["verdict"] for ratio in ratios} == {"better"}
    found = {ratio["figure"]: round(ratio["ratio"], 2) for ratio in ratios}
    assert found["decode, tok/s"] == 1.5 and found["next token p99, ms"] == 0.67
    shown = compared(before, after)
    assert "Some <CPU>, 2 cores" in shown and "1.50" in shown and "Not the same" not in shown
    assert {r["verdict"] for r in json.loads(compared(after, before, "--json"))["ratios"]} == {
        "worse"
    }


def test_a_comparison_of_two_machines_says_so(tmp_path):
    other = msgspec.structs.replace(MACHINE, cpu="Other")
    before = saved(tmp_path / "a.json", report(1))
    after = saved(tmp_path / "b.json", report(1, machine=other))
    shown = compared(before, after)
    assert "Not the same: machine." in shown and "Other, 2 cores" in shown and "same" in shown


def test_reports_without_common_streams_are_refused(tmp_path, monkeypatch):
    files = [saved(tmp_path / f"{n}.json", report(n)) for n in (1, 2)]
    assert "no number of streams in common" in refused(monkeypatch, "--compare", *files)


def test_a_file_that_is_no_report_is_named(tmp_path, monkeypatch):
    (tmp_path / "x.json").write_text("{}")
    message = refused(monkeypatch, "--compare", *[str(tmp_path / "x.json")] * 2)
    assert message.startswith(f"penstock: {tmp_path}/x.json: no report") and "--report" in message


@pytest.mark.parametrize("name", ["x.pdf", "x", "no/folder.html"])
def test_a_report_that_cannot_be_written_is_refused_before_the_measurement(
    tmp_path, monkeypatch, name
):
    monkeypatch.chdir(tmp_path)
    message = refused(monkeypatch, "no-such-model", "--report", name)
    assert "no-such-model" not in message and name.split("/")[0] in message


def test_plots_without_matplotlib_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = refused(monkeypatch, "no-such-model", "--report", "x.png")
    assert "pip install 'penstock[bench]'" in message
    assert "no-such-model" in refused(monkeypatch, "no-such-model", "--report", "x.json")


def test_gpus_are_named_by_the_driver(tmp_path):
    """The files of the driver on a machine with two GPUs."""
    for bus in ("0000:1b:00.0", "0000:0a:00.0"):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(f"Model: \t NVIDIA {bus[5:7]}\nIRQ: 1\n")
    assert gpu_names(tmp_path) == ["NVIDIA 0a", "NVIDIA 1b"]
    assert gpu_names(tmp_path / "nowhere") == []
