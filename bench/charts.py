"""The speed bench as a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Report = dict[str, Any]


def speed(report: Report, file: Path, say: Callable[[str], None]) -> None:
    """Bars of latency by tool, one bar of its parts, and a line of growth."""
    try:
        import matplotlib
    except ImportError:
        say("No plot: \"pip install -e '.[bench]'\" adds matplotlib.")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(14, 9), layout="constrained")
    _tools(axes[0][0], report["tools"])
    _sides(axes[0][1], report)
    _growth(axes[1][0], report.get("growth") or [])
    _limit(axes[1][1], report.get("limit"))
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _tools(axes: Any, tools: Report) -> None:
    ways = [(way, callers) for way in next(iter(tools.values())) for callers in ("1", "16")]
    for shift, (way, callers) in enumerate(ways):
        places = [number + shift * 0.2 for number in range(len(tools))]
        axes.bar(places, [tools[tool][way][callers]["p95"] for tool in tools], 0.19, label=f"{way} x {callers}")
        for place, tool in zip(places, tools, strict=True):
            axes.plot([place - 0.09, place + 0.09], [tools[tool][way][callers]["p50"]] * 2, color="black", linewidth=1)
    axes.set_xticks([n + 0.3 for n in range(len(tools))], [tool.removeprefix("memory_") for tool in tools], fontsize=8)
    axes.set(title="p95 by tool (line: p50)", ylabel="ms")
    axes.legend(fontsize=7)


def _sides(axes: Any, report: Report) -> None:
    """The parts of memory_context as one stacked bar; the others beside it."""
    figures = report["compare"]["figures"]
    names = ["floor", "memory_context", *[name for name in figures if name not in ("floor", "engine", "HTTP")]]
    bottom = 0.0
    for part, color in zip(report["compare"]["parts"], ("#4c72b0", "#dd8452", "#55a868", "#c44e52"), strict=True):
        height = max(0.0, report["compare"]["parts"][part]["p50"])
        axes.bar([1], [height], 0.6, bottom=bottom, label=part, color=color)
        bottom += height
    for place, name in enumerate(names):
        if name != "memory_context":
            axes.bar([place], [figures[name]["p50"]], 0.6, color="#999999")
    p95 = [figures["engine" if name == "memory_context" else name]["p95"] for name in names]
    axes.plot(range(len(names)), p95, "k_", markersize=22, label="p95 (of memory_context: in process)")
    rows = report.get("baseline", {}).get("rows", 0)
    ticks = [name if n < 2 else f"{name}\n{rows:,} rows" for n, name in enumerate(names)]
    axes.set_xticks(range(len(names)), ticks, fontsize=8)
    axes.set(title="p50 and its parts, beside floor and baselines", ylabel="ms")
    axes.legend(fontsize=7)


def _growth(axes: Any, steps: list[Report]) -> None:
    axes.set(title="Growth, tenants of equal size", xlabel="facts in the database", ylabel="ms", xscale="log")
    if not steps:
        axes.text(0.5, 0.5, "not measured", ha="center", transform=axes.transAxes)
        return
    facts = [step["facts"] for step in steps]
    for name in ("memory_context", "memory_search", "floor"):
        (line,) = axes.plot(facts, [step[name]["p95"] for step in steps], "o-", label=f"{name}, p95")
        axes.plot(facts, [step[name]["p50"] for step in steps], "o:", color=line.get_color(), label=f"{name}, p50")
    axes.axhline(1.5 * steps[0]["memory_context"]["p95"], color="grey", linestyle="--", label="target for context p95")
    axes.set_ylim(0, 1.9 * max(step["memory_context"]["p95"] for step in steps))
    axes.legend(fontsize=7, ncols=2, loc="upper left")


def _limit(axes: Any, limit: Report | None) -> None:
    axes.set(title="One large tenant", xlabel="its facts", ylabel="ms")
    if not limit:
        axes.text(0.5, 0.5, "not measured (--limit-search)", ha="center", transform=axes.transAxes)
        return
    rows = [step["rows"] for step in limit["steps"]]
    for name in ("memory_context", "memory_search"):
        axes.plot(rows, [step[name]["p95"] for step in limit["steps"]], "o-", label=f"{name}, p95")
    axes.axhline(100, color="grey", linestyle="--", label="100 ms")
    axes.legend(fontsize=7)
