"""Plots of `penstock bench` reports, as PNG files and HTML pages."""

from __future__ import annotations

import html
import io
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from penstock.cli.bench_report import Level, Report, machine_text, setting_text
from penstock.config import SettingsError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLOTTED: Final = (".png", ".html")
SUFFIXES: Final = (*PLOTTED, ".json")
FIGURE_INCHES: Final = (10.0, 7.0)
STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0}
th,td{padding:.25rem .8rem;text-align:right;border-bottom:1px solid #d9dde1}
th:first-child,td:first-child{text-align:left}
svg{width:100%;height:auto}
"""


def check_report_file(path: Path) -> None:
    """Check that a report can be written to `path`. Raises SettingsError, and OSError if its folder
    does not exist."""
    if path.suffix not in SUFFIXES:
        raise SettingsError(f"--report {path}: the name must end in .html, .png or .json")
    if path.suffix in PLOTTED:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            raise SettingsError(
                f"--report {path}: plots need matplotlib: pip install 'penstock[bench]'"
                " (a .json report needs nothing)"
            ) from None
    path.parent.resolve(strict=True)


def write_report(report: Report, path: Path) -> None:
    """Write a report in the format that the suffix of `path` names. Raises OSError."""
    import msgspec

    if path.suffix == ".json":
        text = msgspec.json.format(msgspec.json.encode(report), indent=2)
        path.write_bytes(text + b"\n")
    elif path.suffix == ".png":
        path.write_bytes(plots(report, "png"))
    else:
        path.write_text(page(report), encoding="utf-8")


def page(report: Report) -> str:
    """Return an HTML page with the plots and tables of a report. It needs no other file."""
    drawing = plots(report, "svg").decode()
    drawing = drawing[drawing.index("<svg") :]
    title = html.escape(f"{report.model}: speed")
    facts = (
        setting_text(report),
        machine_text(report.machine),
        f"kernel {report.machine.kernel}",
        f"Penstock {report.version}",
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>{STYLE}</style>\n<h1>{title}</h1>\n<p>{html.escape('; '.join(facts))}</p>\n"
        f"{drawing}\n{_table(report)}\n</html>\n"
    )


def _table(report: Report) -> str:
    titles = ["Streams", "Prefill, tok/s", "Decode, tok/s"]
    titles += [f"{of} token {p}, ms" for of in ("First", "Next") for p in ("p50", "p95", "p99")]
    rows = ["".join(f"<td>{cell}</td>" for cell in _cells(level)) for level in report.levels]
    head = "".join(f"<th>{title}</th>" for title in titles)
    return (
        f"<table>\n<tr>{head}</tr>\n" + "\n".join(f"<tr>{row}</tr>" for row in rows) + "\n</table>"
    )


def _cells(level: Level) -> list[str]:
    latencies = [s for of in (level.first_token_s, level.token_s) for s in (of.p50, of.p95, of.p99)]
    rates = (level.prefill_rate.median, level.decode_rate.median)
    return [
        str(level.streams),
        *(f"{rate:,.1f}" for rate in rates),
        *(f"{1000 * s:,.1f}" for s in latencies),
    ]


def plots(report: Report, format: Literal["png", "svg"]) -> bytes:
    """Return the picture of a report: throughput and latencies against the number of streams."""
    import matplotlib

    # Draws into memory; the default may want a screen.
    with matplotlib.rc_context({"svg.hashsalt": "penstock", "font.size": 9}):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=FIGURE_INCHES, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(2, 2)
        if format == "png":  # a page has these facts as text
            facts = (report.model, setting_text(report), machine_text(report.machine))
            figure.suptitle("\n".join(facts))
        _plot_rates(axes[0][0], report, "decode_rate", "Decode throughput, tokens/s")
        _plot_rates(axes[0][1], report, "prefill_rate", "Prefill throughput, tokens/s")
        _plot_latencies(axes[1][0], report, "token_s", "Time between tokens, ms")
        _plot_latencies(axes[1][1], report, "first_token_s", "Time to first token, ms")
        drawn = io.BytesIO()
        figure.savefig(drawn, format=format, dpi=120)
        return drawn.getvalue()


def _plot_rates(
    axes: Axes, report: Report, figure: Literal["decode_rate", "prefill_rate"], title: str
) -> None:
    """Plot the medians of a rate, with bars from its minimum to its maximum."""
    spreads = [getattr(level, figure) for level in report.levels]
    medians = [spread.median for spread in spreads]
    below = [spread.median - spread.min for spread in spreads]
    above = [spread.max - spread.median for spread in spreads]
    axes.errorbar(range(len(spreads)), medians, yerr=[below, above], marker="o", capsize=3)
    _finish(axes, report, title)


def _plot_latencies(
    axes: Axes, report: Report, figure: Literal["token_s", "first_token_s"], title: str
) -> None:
    """Plot the percentiles of a latency."""
    for name in ("p50", "p90", "p95", "p99"):
        values = [1000 * getattr(getattr(level, figure), name) for level in report.levels]
        axes.plot(range(len(values)), values, marker="o", label=name)
    axes.legend()
    _finish(axes, report, title)


def _finish(axes: Axes, report: Report, title: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("Concurrent streams")
    axes.set_xticks(range(len(report.levels)), [str(level.streams) for level in report.levels])
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
