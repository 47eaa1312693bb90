"""What the speed bench found: held against the targets, and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from baseline import VARIANTS
from calls import CONTEXT, SEARCH

ENGINE, HTTP, FLOOR = "engine", "HTTP", "floor"
MOST_FLOORS = 4.0
MOST_GROWTH = 1.5
MOST_MEMORY_MB = 450.0

Report = dict[str, Any]
Row = tuple[str, str, Report]


def targets(report: Report) -> list[Report]:
    """What the parts say about the targets; a part that did not run says nothing."""
    figures = report["compare"]["figures"]
    ours = figures[ENGINE]["p95"]
    found = [_target("context p95 / floor p95", ours / figures[FLOOR]["p95"], MOST_FLOORS)]
    if "baseline" in report:
        found.append(_target(f"context p95 ms / baseline's ({VARIANTS[0]})", ours, figures[VARIANTS[0]]["p95"]))
    if len(report.get("growth", [])) > 1:
        first, last = report["growth"][0], report["growth"][-1]
        name = f"context p95 at {last['facts']:,} facts / at {first['facts']:,}"
        found.append(_target(name, last[CONTEXT]["p95"] / first[CONTEXT]["p95"], MOST_GROWTH))
    if report["memory"]:
        found.append(_target("memory of the server process, MB", report["memory"]["now"], MOST_MEMORY_MB))
    return found


def _target(name: str, value: float, limit: float) -> Report:
    return {"name": name, "value": round(value, 2), "target": round(limit, 2), "met": value <= limit}


def show(report: Report, console: Console) -> None:
    if report.get("growth"):
        rows = [(f"{s['facts']:,}", _short(n), s[n]) for s in report["growth"] for n in (CONTEXT, SEARCH, FLOOR)]
        console.print(_figures("Growth: facts in the database, tenants of equal size", "facts", rows))
    console.print(_figures("Tools: in process or over HTTP, callers at once", "", _tools(report)))
    rows = [(name, _note(name, report), figures) for name, figures in report["compare"]["figures"].items()]
    console.print(_figures("memory_context beside others, one caller, call by call", "", rows))
    console.print(_parts(report["compare"]["parts"]))
    if "limit" in report:
        _show_limit(report["limit"], console)
    console.print(_targets(report["targets"]))
    _show_warnings(report, console)


def _tools(report: Report) -> list[Row]:
    return [
        (_short(tool), f"{way} x {callers}", figures)
        for tool, ways in report["tools"].items()
        for way, by_callers in ways.items()
        for callers, figures in by_callers.items()
    ]


def _short(tool: str) -> str:
    return tool.removeprefix("memory_")


def _note(name: str, report: Report) -> str:
    if name == FLOOR:
        return "embedding + one row by key"
    if name in (ENGINE, HTTP):
        return "ours"
    return f"baseline, recall {report['baseline']['recall'][name]:.3f}"


def _figures(title: str, head: str, rows: Sequence[Row]) -> Table:
    table = Table(head, "", title=title, title_justify="left")
    for name in ("p50 ms", "p95 ms", "p99 ms", "calls", "calls/s"):
        table.add_column(name, justify="right")
    for first, second, figures in rows:
        table.add_row(first, second, *(f"{value:,}" for value in figures.values()))
    return table


def _parts(parts: Report) -> Table:
    table = Table("part", "p50 ms", "p95 ms", title="Where the time of memory_context goes", title_justify="left")
    for name, figures in parts.items():
        table.add_row(name, f"{figures['p50']:,}", f"{figures['p95']:,}")
    return table


def _show_limit(limit: Report, console: Console) -> None:
    rows = [(f"{s['rows']:,}", _short(tool), s[tool]) for s in limit["steps"] for tool in (CONTEXT, SEARCH)]
    console.print(_figures("One large tenant", "its facts", rows))
    for tool, count in limit["crosses"].items():
        console.print(f"{_short(tool)}: p95 passes 100 ms at {f'{count:,} facts' if count else 'none of these'}")


def _targets(found: Sequence[Report]) -> Table:
    table = Table("target", "value", "at most", "met", title="Targets", title_justify="left")
    for target in found:
        met = "[green]yes[/]" if target["met"] else "[red]no[/]"
        table.add_row(target["name"], f"{target['value']:,}", f"{target['target']:,}", met)
    return table


def _show_warnings(report: Report, console: Console) -> None:
    if report["degraded"]:
        console.print(f"[red]Degraded answers, quick for the wrong reason: {report['degraded']}[/]")
    built = report.get("baseline")
    if built and built["rows"] < report["facts"]:
        rows = f"The baseline's table holds {built['rows']:,} facts, ours {report['facts']:,}"
        console.print(f"{rows}: that favours the baseline.")
