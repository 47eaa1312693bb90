"""search, recall, context, served list, served show: what is known, and what sessions are told of it."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import typer
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from butler_memory.cli import screen, words
from butler_memory.cli.session import Session, run
from butler_memory.domain.kinds import ContextStatus, MemoryType, SearchMode

if TYPE_CHECKING:
    from butler_memory.domain.requests import Request

Json = dict[str, Any]

# A person looks at everything; agents see their own scopes.
WHOLE_TENANT = "*"
LONGEST_LIST = 1000
ID_COLUMNS = 36
_NARROW = frozenset({"Type", "Score", "Age", "ID", "Tokens", "Items"})
_SIGNALS = ("relevance", "importance", "recency", "confidence")  # in the order of the formula; others come after
_UNAVAILABLE = 5  # as in app.EXIT_CODES

MISSING = {
    "no_embedding_model": "There is no embedding model here, so only words were compared; 'butler-memory up' gets it.",
    "reembedding": "The vectors are being made anew by another model ('butler-memory reembed'), so only words were"
    " compared.",
    "embedding_timeout": "The embedding model is busy, so only words were compared.",
    "prompt_cut": "The prompt is long, so only its beginning and its end were looked at.",
}
NOTHING_TO_SAY = "nothing that is remembered matters here"
NO_ROOM = "the budget leaves no room for a memory"

Limit = Annotated[int | None, typer.Option("--limit", metavar="N", help="At most 200. [default: 20]")]
MinConfidence = Annotated[
    float | None, typer.Option("--min-confidence", metavar="0..1", help="0 includes what has faded. [default: 0.2]")
]
Scope = Annotated[
    str | None,
    typer.Option("--scope", metavar="SCOPE", help="global, a butler's name or project:SLUG. [default: everything]"),
]
Explain = Annotated[bool, typer.Option("--explain", help="Say under each result why it was found.")]


def search(
    session: Session,
    query: Annotated[list[str] | None, typer.Argument(metavar="QUERY", help="If left out, the newest.")] = None,
    types: Annotated[
        list[MemoryType] | None,
        typer.Option("--type", parser=words.memory_type, metavar="TYPE", help="fact, rule or episode; repeatable."),
    ] = None,
    scope: Scope = None,
    mode: Annotated[SearchMode | None, typer.Option(help="By meaning, by words, or both. [default: hybrid]")] = None,
    limit: Limit = None,
    min_confidence: MinConfidence = None,
    tags: words.Tags = None,
    predicate: Annotated[str | None, typer.Option(help="Facts that say this, e.g. allergy.")] = None,
    subject: Annotated[str | None, typer.Option(help="Facts about this, e.g. user.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="From it on, e.g. 2026-03-01T09:30:00Z.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Before this time.")] = None,
    valid_at: Annotated[str | None, typer.Option(metavar="TIME", help="Facts that held at this time.")] = None,
    order: Annotated[
        Literal["relevance", "composite"] | None, typer.Option(help="What counts. [default: relevance]")
    ] = None,
    explain: Explain = False,
) -> None:
    """Find memories, most relevant first; without a query the newest."""
    arguments = {
        "query": " ".join(query or []),
        "types": types,
        "scope": WHOLE_TENANT if scope is None else scope,
        "mode": mode,
        "limit": limit,
        "min_confidence": min_confidence,
        "tags": words.split_tags(tags),
        "predicate": predicate,
        "subject": subject,
        "since": since,
        "until": until,
        "valid_at": valid_at,
        "order": order,
        "explain": explain,
    }
    run(_search(session, arguments))


async def _search(session: Session, arguments: Json) -> None:
    from butler_memory.domain.requests import SearchMemories

    _check(SearchMemories, arguments)
    # Neither browsing nor words need the model, which takes most of a second to load.
    embeds = bool(arguments["query"]) and arguments["mode"] is not SearchMode.KEYWORD
    async with session.memory(embeds=embeds) as (engine, who):
        found = await engine.memory.search(who, arguments)
        now = engine.clock()
    session.answer(found, *_results(found, now, "Nothing was found."))


def recall(
    session: Session,
    topic: Annotated[list[str], typer.Argument(metavar="TOPIC", help="What you want to know.")],
    scope: Scope = None,
    limit: Limit = None,
    min_confidence: MinConfidence = None,
    explain: Explain = False,
) -> None:
    """Show the facts and rules that matter for a topic, or nothing."""
    arguments = {
        "topic": " ".join(topic),
        "scope": WHOLE_TENANT if scope is None else scope,
        "limit": limit,
        "min_confidence": min_confidence,
        "explain": explain,
    }
    run(_recall(session, arguments))


async def _recall(session: Session, arguments: Json) -> None:
    from butler_memory.domain.requests import RecallMemories

    _check(RecallMemories, arguments)
    async with session.memory(embeds=True) as (engine, who):
        found = await engine.memory.recall(who, arguments)
        now = engine.clock()
    session.answer(found, *_results(found, now, "Nothing relevant is known."))


def _check(model: type[Request], arguments: Json) -> None:
    """The engine checks too; here it is before a database is started."""
    from butler_memory.domain.requests import parse

    parse(model, arguments)


def _results(found: Json, now: datetime, nothing: str) -> Iterable[RenderableType]:
    yield _listing(found["results"], now) if found["results"] else Text(nothing)
    if hidden := _hidden(found["hidden"]):
        yield screen.safe(hidden, "dim")
    for reason in found["degraded"]:
        yield _missing(reason)


def _listing(results: list[Json], now: datetime) -> Table:
    score = "" if results[0]["score_kind"] == "newest" else "Score"
    columns = ("Type", score, "What it says", "Scope", "Standing", "Age")
    return _frameless(columns, "What it says", [_row(memory, now) for memory in results])


def _frameless(columns: tuple[str, ...], widest: str, rows: list[list[Text]]) -> Table:
    """Frames would leave a narrow terminal no room for words. An id is folded only where it would be cut off."""
    made = screen.table(*columns, rows=rows)
    made.box, made.show_edge, made.padding = box.SIMPLE_HEAD, False, (0, 1, 0, 0)
    roomy = screen.out().width >= 2 * ID_COLUMNS
    for column in made.columns:
        column.min_width = ID_COLUMNS if roomy and column.header == widest else None
        column.no_wrap = roomy and column.header in _NARROW
    return made


def _row(memory: Json, now: datetime) -> list[Text]:
    score = "" if memory["score_kind"] == "newest" else f"{memory['score']:.3f}"
    age = _age(memory.get("occurred_at") or memory["created_at"], now)
    return [Text(memory["type"]), Text(score), _said(memory), screen.safe(memory["scope"]), _standing(memory), age]


def _age(then: str, now: datetime) -> Text:
    from butler_memory.domain.block import ago

    return screen.safe(ago(datetime.fromisoformat(then), now), "dim")


def _said(memory: Json) -> Text:
    from butler_memory.domain.sentence import line_of_fact

    content = memory["content"]
    if memory["type"] == MemoryType.FACT and content is not None:
        content = line_of_fact(memory["subject"] or "", memory["predicate"] or "", content)
    lines = [screen.short(content), screen.safe(memory["id"], "dim")]
    if "why" in memory:
        lines += [screen.safe(memory["why"], "dim"), screen.safe(_signals(memory["signals"]), "dim")]
    return Text("\n").join(lines)


def _standing(memory: Json) -> Text:
    standing = Text((memory.get("maturity") or memory.get("permanence") or "").replace("_", "-"))
    if memory["state"] == "fading":
        standing.append("\nfading", style="yellow")
    if memory["contested"]:
        standing.append("\ncontested", style="yellow")
    return standing


def _signals(signals: Mapping[str, float | None]) -> str:
    names = dict.fromkeys((*_SIGNALS, *signals))
    return ", ".join(f"{name} {value:.2f}" for name in names if (value := signals.get(name)) is not None)


def _hidden(hidden: Mapping[str, int]) -> str:
    said = {
        "decayed": "decayed (--min-confidence 0 shows them)",
        "below_floor": "not relevant enough ('search' shows them)",
        "shadowed": "shadowed by a nearer scope (--scope '*' shows them)",
    }
    counts = [f"{hidden[name]} {words}" for name, words in said.items() if hidden[name]]
    return f"Hidden: {', '.join(counts)}" if counts else ""


def _missing(reason: str) -> Text:
    return screen.safe(MISSING.get(reason, f"Something was missing: {reason}."), "yellow")


def context(
    session: Session,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", help="If left out, a session's start; '-' reads standard input."),
    ] = None,
    butler: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose session. [default: the admin's own]")
    ] = None,
    budget: Annotated[int | None, typer.Option(metavar="TOKENS", help="At most this long. [default: 3000]")] = None,
) -> None:
    """Print the block that a session with this prompt starts with, and nothing else on standard output."""
    arguments = {"trigger_prompt": _prompt(prompt or []), "butler": butler, "token_budget": budget}
    run(_context(session, arguments))


def _prompt(given: list[str]) -> str:
    """A pasted log may hold any bytes and be of any length; a session that starts with it needs its memory too (C6)."""
    if given == ["-"]:
        return sys.stdin.buffer.read().decode("utf-8", "replace")
    return " ".join(given)


async def _context(session: Session, arguments: Json) -> None:
    from butler_memory.domain.requests import BuildContext

    _check(BuildContext, arguments)
    async with session.memory(embeds=bool(arguments["trigger_prompt"])) as (engine, who):
        made = await engine.memory.context(who, arguments)
    if session.json:
        screen.show_json(made)
    else:
        _print_block(made["block"])
        screen.err().print(*_status_lines(made), sep="\n", soft_wrap=True)
    if _failed(made):
        raise typer.Exit(_UNAVAILABLE)


def _print_block(block: str) -> None:
    """To the byte; a terminal gets the line break that the block itself ends without."""
    sys.stdout.write(block + "\n" if block and sys.stdout.isatty() else block)
    sys.stdout.flush()


def _failed(made: Json) -> bool:
    """Only what could not be made has no id in the log of what was served."""
    return made["served_id"] is None


def _status_lines(made: Json) -> list[Text]:
    if _failed(made):
        return [screen.safe(f"failed: the memory could not answer ({', '.join(made['degraded'])})", "yellow")]
    reason = NO_ROOM if made["status"] == ContextStatus.BUDGET_TOO_SMALL else NOTHING_TO_SAY
    status = made["status"] if made["block"] else f"{made['status']} ({reason})"
    used = f"{made['tokens']} tokens by {made['tokenizer']}"
    line = screen.safe(f"{status} · {used} · served {made['served_id']}", "dim")
    return [line, *map(_missing, made["degraded"])]


def served_list(
    session: Session,
    butler: Annotated[str | None, typer.Option(metavar="NAME", help="Only this butler's sessions.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=LONGEST_LIST, help="Newest first.")] = 20,
) -> None:
    """Show what sessions were served."""
    run(_served_list(session, butler, limit))


async def _served_list(session: Session, butler: str | None, limit: int) -> None:
    async with session.memory() as (engine, who):
        found = await engine.memory.served_list(who, butler, limit)
        now = engine.clock()
    columns = ("ID", "Age", "Butler", "Status", "Tokens", "Items")
    table = _frameless(columns, "ID", [_served_row(each, now) for each in found])
    session.answer({"served": found}, table if found else Text("Nothing was served yet.", style="dim"))


def _served_row(served: Json, now: datetime) -> list[Text]:
    tokens = f"{served['tokens']}/{served['budget']}"
    row = [served["butler"], served["status"].replace("_", " "), tokens, len(served["items"])]
    return [screen.safe(served["id"]), _age(served["served_at"], now), *map(screen.safe, row)]


def served_show(
    session: Session,
    id_: Annotated[UUID, typer.Argument(metavar="ID", help="As 'context' and 'served list' show it.")],
    diff: Annotated[bool, typer.Option("--diff", help="What would be different now?")] = False,
) -> None:
    """Show a block as it was served, and why each memory was in it."""
    run(_served_show(session, id_, diff=diff))


async def _served_show(session: Session, served_id: UUID, *, diff: bool) -> None:
    async with session.memory(embeds=diff) as (engine, who):
        found = await engine.memory.served_show(who, served_id, compare=diff)
    served = found["served"]
    session.answer(found, *_portrait(served), *(_compared(served, found["now"]) if diff else []))


def _portrait(served: Json) -> Iterable[RenderableType]:
    body = served["body"]
    about = {
        "served": served["served_at"],
        "to": served["butler"],
        "session": served["session_id"],
        "request": served["request_id"],
        "project": body and body["project"],
        "prompt": body and screen.short(body["prompt"] or "(none: a session's start)"),
        "status": served["status"],
        "tokens": f"{served['tokens']} of {served['budget']}, by {served['tokenizer']}",
    }
    yield screen.pairs({name: value for name, value in about.items() if value})
    yield Text()
    yield Text("(its text was erased)", style="dim") if body is None else _block(body["block"])
    if served["items"]:
        yield Text()
        columns = ("Type", "Score", "Memory", "Tokens", "")
        yield _frameless(columns, "Memory", [_item(each) for each in served["items"]])


def _block(block: str) -> Text:
    return screen.safe(block) if block else Text("(an empty block)", style="dim")


def _item(item: Json) -> list[Text]:
    memory = screen.safe(item["id"]).append(f"\n{_signals(item['signals'])}", style="dim")
    marks = ", ".join(mark for mark in ("core", "cut") if item[mark])
    return [*map(screen.safe, (item["type"], f"{item['score']:.3f}")), memory, screen.safe(item["tokens"]), Text(marks)]


# Every line says how old it is, so after a minute every line would be different.
_AGES = re.compile(r"(?<=^- \[)\d+[mhd](?= ago\])|(?<=confirmed )\d+[mhd](?= ago)", re.MULTILINE)
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def _compared(served: Json, now: Json | None) -> Iterable[RenderableType]:
    yield Text()
    if now is None:
        yield Text("Its text was erased, so it cannot be compared with now.", style="yellow")
    elif _failed(now):
        yield from _status_lines(now)
    else:
        changes = _changes(served["body"]["block"], now["block"], served["served_at"])
        yield from changes or [Text("The same would be served now, but for the ages of what it says.")]
        yield from map(_missing, now["degraded"])


def _changes(then: str, now: str, served_at: str) -> list[Text]:
    lines = difflib.unified_diff(
        _AGES.sub("…", then).splitlines(),
        _AGES.sub("…", now).splitlines(),
        fromfile=f"served {served_at}",
        tofile="now",
        lineterm="",
    )
    return [screen.safe(line, _COLOURS.get(line[:1], "")) for line in lines]
