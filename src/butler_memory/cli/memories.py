"""remember, list, get, edit, confirm, forget, restore, stats."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from butler_memory.cli import screen, words
from butler_memory.cli.session import Session, run
from butler_memory.domain.kinds import MemoryType, Permanence, SourceKind

Json = dict[str, Any]
LONGEST_LIST = 1000
LONGEST_INPUT = 1 << 20  # far over the engine's limit, which then says what the limit is


def remember(
    session: Session,
    text: Annotated[list[str], typer.Argument(metavar="TEXT", help="What to remember; '-' reads standard input.")],
    subject: Annotated[str | None, typer.Option(help="Whom or what a fact is about. [default: user]")] = None,
    predicate: Annotated[str | None, typer.Option(help="What it says, e.g. allergy, home. [default: note]")] = None,
    rule: Annotated[bool, typer.Option("--rule", help="A rule of behaviour instead of a fact.")] = False,
    episode: Annotated[bool, typer.Option("--episode", help="Something that happened instead of a fact.")] = False,
    scope: words.Where = None,
    tags: words.Tags = None,
    importance: words.Importance = None,
    permanence: words.Lasting = None,
) -> None:
    """Store a fact about you (or, with --rule or --episode, something else)."""
    kind = _kind_to_store(rule=rule, episode=episode)
    arguments = {
        "content": _content(text),
        "source_kind": SourceKind.USER_STATED,
        "tags": words.split_tags(tags),
        "importance": importance,
        **_by_kind(kind, subject, predicate, scope, permanence),
    }
    run(_remember(session, kind, arguments))


def _kind_to_store(*, rule: bool, episode: bool) -> MemoryType:
    if rule and episode:
        raise typer.BadParameter("choose one of --rule and --episode")
    if rule:
        return MemoryType.RULE
    return MemoryType.EPISODE if episode else MemoryType.FACT


def _content(text: list[str]) -> str:
    if text == ["-"]:
        given = sys.stdin.buffer.read(LONGEST_INPUT)
        decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        # Where the reading stopped, it may be inside a character, which says nothing of what was given.
        return decoder.decode(given, final=len(given) < LONGEST_INPUT).strip()
    return " ".join(text)


def _by_kind(
    kind: MemoryType, subject: str | None, predicate: str | None, scope: str | None, permanence: Permanence | None
) -> Json:
    if kind is not MemoryType.FACT and (subject or predicate):
        raise typer.BadParameter("--subject and --predicate are for facts")
    if kind is MemoryType.EPISODE:
        if permanence:
            raise typer.BadParameter("--permanence is for facts and rules; an episode has a time to live")
        return {"butler": scope}
    named = {"subject": subject or "user", "predicate": predicate or "note"} if kind is MemoryType.FACT else {}
    return {**named, "scope": scope, "permanence": permanence}


async def _remember(session: Session, kind: MemoryType, arguments: Json) -> None:
    from butler_memory.cli.model import NoModel

    async with session.memory(embeds=True) as (engine, who):
        store = {
            MemoryType.FACT: engine.memory.store_fact,
            MemoryType.RULE: engine.memory.store_rule,
            MemoryType.EPISODE: engine.memory.store_episode,
        }[kind]
        written = await store(who, arguments)
        without_vector = isinstance(engine.embedder, NoModel)
    session.answer(written, _written(written))
    if without_vector:
        screen.note("Stored without a vector: the embedding model is not here yet. The next 'up' makes up for it.")


def list_(
    session: Session,
    kind: Annotated[
        MemoryType | None,
        typer.Argument(parser=words.memory_type, metavar="[TYPE]", help="facts, rules or episodes; all if left out."),
    ] = None,
    scope: words.Where = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state", parser=words.state, metavar="STATE", help="Repeatable; 'all' for every one. [default: live ones]"
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=LONGEST_LIST, help="Of each type, newest first.")] = 20,
) -> None:
    """Show what is remembered, newest first."""
    kinds = [kind] if kind else [MemoryType.FACT, MemoryType.RULE, MemoryType.EPISODE]
    states = {each: known for each in kinds if (known := words.states_of(each, state or []))}
    if not states:
        raise typer.BadParameter(f"{kinds[0]}s have the states {', '.join(words.STATES[kinds[0]])}")
    run(_list(session, states, scope, limit))


async def _list(session: Session, states: dict[MemoryType, list[str]], scope: str | None, limit: int) -> None:
    from butler_memory.domain.requests import Stats, parse

    scope = parse(Stats, {"scope": scope}).scope  # a scope is checked in one place
    async with session.memory() as (engine, who):
        found = {
            f"{kind}s": await engine.memory.list_newest(who, kind, scope, known, limit)
            for kind, known in states.items()
        }
    tables = [_listing(name, memories) for name, memories in found.items() if memories]
    session.answer(found, *(tables or [Text("Nothing is remembered here yet.", style="dim")]))


def _listing(name: str, memories: list[Json]) -> RenderableType:
    rows = (
        [screen.safe(m["id"]), _line(m), screen.safe(_state(m)), screen.safe(_scope(m)), screen.moment(m["created_at"])]
        for m in memories
    )
    return screen.table("ID", name.capitalize(), "State", "Scope", "Created", rows=rows)


def _line(memory: Mapping[str, Any]) -> Text:
    content = screen.short(memory["content"])
    if memory["type"] != MemoryType.FACT:
        return content
    return screen.short(f"{memory['subject']} · {memory['predicate']}: ").append(" ").append(content)


def _state(memory: Mapping[str, Any]) -> str:
    return str(memory.get("validity") or memory.get("status") or memory["state"])


def _scope(memory: Mapping[str, Any]) -> str:
    return str(memory["butler"] if memory["type"] == MemoryType.EPISODE else memory["scope"])


def get(session: Session, type_: words.Type, id_: words.Id) -> None:
    """Show one memory with its links and where it came from."""
    run(_get(session, {"type": type_, "id": str(id_)}))


async def _get(session: Session, arguments: Json) -> None:
    async with session.memory() as (engine, who):
        found = await engine.memory.get(who, arguments)
    session.answer(found, _portrait(found))


def _portrait(found: Json) -> RenderableType:
    memory = found["memory"]
    attributes = {name: value for name, value in memory.items() if name != "content" and value not in (None, [], {})}
    content = memory["content"]
    body = screen.safe(content, "bold") if content is not None else Text("(no content)", style="dim")
    links = [
        screen.safe(f"{'→' if way == 'out' else '←'} {link['relation']} {link['type']} {link['id']}")
        for way in ("out", "in")
        for link in found["links"][way]
    ]
    sources = [screen.safe(f"from episode {source['id']} ({source['status']})") for source in found["provenance"]]
    return Panel(
        Group(body, Text(), screen.pairs(attributes), *links, *sources), title=Text(memory["type"]), title_align="left"
    )


def edit(
    session: Session,
    type_: words.Type,
    id_: words.Id,
    content: Annotated[str | None, typer.Option(help="New words: a new row that supersedes this one.")] = None,
    importance: words.Importance = None,
    permanence: words.Lasting = None,
    tags: words.Tags = None,
) -> None:
    """Correct a fact or a rule."""
    if type_ is MemoryType.EPISODE:
        raise typer.BadParameter("an episode is history and cannot be edited; forget it instead")
    changes = {
        "content": content,
        "importance": importance,
        "permanence": permanence,
        "tags": words.split_tags(tags),
    }
    run(_change(session, "edit", {"type": type_, "id": str(id_), **changes}, embeds=True))


def confirm(session: Session, type_: words.Type, id_: words.Id) -> None:
    """Say that a fact or a rule is still right: its confidence starts anew."""
    run(_change(session, "confirm", {"type": type_, "id": str(id_)}))


def forget(session: Session, type_: words.Type, id_: words.Id) -> None:
    """Take a memory out of use; 'restore' brings it back."""
    run(_change(session, "forget", {"type": type_, "id": str(id_)}))


def restore(
    session: Session,
    type_: words.Type,
    id_: words.Id,
    replace: Annotated[bool, typer.Option("--replace", help="Retire the value that took its place.")] = False,
) -> None:
    """Bring back what was forgotten, has expired or was superseded."""
    run(_change(session, "restore", {"type": type_, "id": str(id_), "replace": replace}))


async def _change(session: Session, action: str, arguments: Json, *, embeds: bool = False) -> None:
    async with session.memory(embeds=embeds) as (engine, who):
        act = {
            "edit": engine.memory.edit,
            "confirm": engine.memory.confirm,
            "forget": engine.memory.forget,
            "restore": engine.memory.restore,
        }[action]
        written = await act(who, arguments)
    session.answer(written, _changed(written))


def _written(written: Json) -> Text:
    return _named(written).append(f"  {written['outcome']}, now {written['state']}", style="not bold")


def _changed(written: Json) -> Text:
    """The outcome says only how it was stored; after a change, people want to know what is so now."""
    line = _named(written).append(f"  now {written['state']}", style="not bold")
    if written["superseded_id"]:
        line.append(f"\nin place of {written['superseded_id']}", style="not bold dim")
    return line


def _named(written: Json) -> Text:
    return screen.safe(f"{written['type']} {written['id']}", "bold")


def stats(session: Session, scope: words.Where = None) -> None:
    """Count what is remembered, and what waits for work."""
    run(_stats(session, scope))


async def _stats(session: Session, scope: str | None) -> None:
    async with session.memory() as (engine, who):
        found = await engine.memory.stats(who, {"scope": scope})
    session.answer(found, _counts(found))


def _counts(found: Json) -> RenderableType:
    groups = (
        ("facts", "by_state"), ("facts", "by_permanence"), ("facts", "by_confidence"), ("rules", "by_state"),
        ("rules", "by_maturity"), ("rules", "by_confidence"), ("episodes", "by_state"),
        ("episodes", "by_consolidation_status"),
    )  # fmt: skip
    rows = [[Text(kind), Text(group.replace("_", " ")), _tally(found[kind][group])] for kind, group in groups]
    rows += [[Text(what), Text(how), screen.safe(said)] for what, how, said in _summaries(found)]
    return screen.table("What", "Counted", "Number", rows=rows)


def _summaries(found: Json) -> list[tuple[str, str, str]]:
    backlog, oldest = found["backlog"], found["backlog"]["oldest_age_hours"]
    waiting = f"{backlog['pending']} pending" + (f", the oldest for {oldest:.1f} h" if oldest else "")
    if backlog["kept_past_their_time"]:
        waiting += f"; {backlog['kept_past_their_time']} kept past their time, since nothing could read them"
    if backlog["consolidation_could_not_run"]:
        waiting += f"; consolidation could not run for {_tallied(backlog['consolidation_could_not_run'])}"
    marks = found["effectiveness"]
    average = "" if marks["average"] is None else f", {marks['average']:.0%} effective on average"
    trust = f"{marks['helpful']} helpful, {marks['harmful']} harmful{average}, {marks['warnings']} warnings"
    late = [name for name, job in found["jobs"].items() if job["late"]]
    return [
        ("tiers", "", _tallied(found["tiers"])),
        ("unconfirmed", "important, faded", f"{found['facts']['unconfirmed']} ('review list' shows them)"),
        ("marks", "on live rules", trust),
        ("backlog", "", waiting),
        ("without vector", "", str(found["without_vector"])),
        ("jobs", "", f"late: {', '.join(late)} ('job list')" if late else "none is late"),
    ]


def _tally(counts: Mapping[str, int]) -> Text:
    return screen.safe(_tallied(counts))


def _tallied(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
