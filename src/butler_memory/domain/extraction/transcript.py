"""Who said what in an episode. Whatever was quoted, pasted, shown by a tool or said by an assistant is left out."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import dedent
from typing import Any, Literal

from butler_memory.domain.extraction.sentences import QUOTED
from butler_memory.domain.extraction.vocabulary import IMPERATIVE, NOT_A_SPEAKER

# An episode has at most 32 kB; a caller may hand over anything.
MOST_CHARS = 64 * 1024


# "nobody": an assistant, a tool, or somebody of whom we know too little.
Voice = Literal["user", "note", "other", "nobody"]


@dataclass(frozen=True)
class Turn:
    voice: Voice
    text: str
    name: str = ""  # of the other


_SPOKEN_BY_USER = frozenset({"user", "human", "customer", "me", "you said"})
_NOTE_LABELS = frozenset({"note", "notes", "session note", "session notes", "summary", "session summary", "session"})
_NOBODY = frozenset(
    (
        "assistant ai bot system tool function agent butler claude chatgpt gpt model developer output result results "
        "observation page search document web website browser log error context memory response thought action"
    ).split()
) | {"tool result", "tool output", "tool call", "search result", "search results", "function result", "ai assistant"}

# They open somebody's own line.
_HEADINGS = frozenset("open next done todo pending blocked decided outcome ps also important".split())
# In a client's own log: what stands in the user's place, and was written by the client or by an agent.
_WRITTEN_BY_CLIENT = ("isMeta", "isCompactSummary", "isSidechain", "isSynthetic", "toolUseResult")
_MACHINES = frozenset(
    "assistant tool memory memories retrieved recalled context result results output log logs system".split()
)
_CLOCK = r"(?:[\[(]?(?:\d{4}-\d\d-\d\d[T ])?\d{1,2}:\d\d(?::\d\d)?(?: ?[AaPp][Mm])?Z?[\])]?\s*[-–]?\s*)?"
_LABEL = r"(?P<label>[^\W\d_][\w .'/-]{0,30}?)(?: ?\([^()\n]{0,40}\)| ?\[[^\[\]\n]{0,40}\])?"
_SPEAKER = re.compile(
    rf"^\s*(?:[-*]\s+)?{_CLOCK}(?:"
    rf"[*_]{{2}}{_LABEL}:?[*_]{{2}}\s*:?"  # **User:** text
    rf"|\[{_LABEL.replace('label', 'bracketed')}\]\s*:?"  # [user] text
    rf"|#{{1,4}}\s+{_LABEL.replace('label', 'heading')}\s*:?\s*$"  # ### User
    rf"|{_LABEL.replace('label', 'prompt')}>(?=\s)"  # user> text
    rf"|{_LABEL.replace('label', 'plain')}:(?=\s|$)"  # User: text
    r")\s*(?P<rest>.*)$"
)
_KINDS_OF_LABEL = ("label", "bracketed", "heading", "prompt", "plain")
_NAME = re.compile(r"[^\W\d_a-z][^\W\d_]+(?: [^\W\d_a-z][^\W\d_]+)?")
# "Speaker 2", "A", "bob": somebody speaks, and who it is cannot be told.
_CODE_NAME = re.compile(r"[A-Za-z]|\w+ (?:\d{1,3}|[A-Z])|(?!btw$|fyi$|ps$|also$|edit$|update$)[a-z][a-z0-9_.-]{1,20}")
_TASK = re.compile(rf"{IMPERATIVE}\b|(?:fix|edit|correct|polish|rewrite|rephrase)\b", re.IGNORECASE)
_ABOUT_USER = re.compile(r"\b[Tt]he user\b|\bUser(?:'s)? [a-z]|^[ *-]{0,8}user(?:'s)? [a-z]", re.M)

_TAG = re.compile(r"<(/?)([A-Za-z][\w:-]{0,40})(?:\s[^<>]{0,300})?(/?)>")
_COMMENT = re.compile(r"<!--(?:.*?-->|.*)", re.S)
_VOID_TAGS = frozenset({"br", "hr", "img", "p"})
_FENCE = re.compile(r"^\s*(?:[-*] )?(?:```|~~~)|^\s*(?:\w+|\*\*\w+:\*\*)[:>]\s*```")
# A quotation mark with no partner on its line.
_OPEN_QUOTE = re.compile(r'^[^"\n]*(?:"[^"\n]*"[^"\n]*)*(?P<straight>")[^"\n]*$|(?P<curly>“)[^”\n]*$', re.M)
# Without a colon: the marks of a terminal client, and a heading that is a machine's name alone.
_MACHINE_BEGINS = re.compile(
    r"^\s*(?:[⎿⏺●└╰]|(?:tool|function|command|search|terminal|shell|console|program) "
    r"(?:output|results?|calls?|responses?)\s*$|(?:output|results?|stdout|stderr)\s*$)",
    re.IGNORECASE,
)
_LETTER = re.compile(
    r"^\s*(?:-{2,}\s*(?:Original|Forwarded) [Mm]essage|Begin forwarded message|From: \S|On .{4,80} wrote:\s*$)"
)
_PRINTED = re.compile(
    r"^\s*(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d\S*\]? +\[?(?:TRACE|DEBUG|INFO|NOTICE|WARN|ERROR|FATAL|CRITICAL)"
    r"|\[?(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL|CRITICAL)[\]:]|Traceback |\s+at \w+[.(]|File \"|[$%#] \w|[|+]|>)"
)
# Patterns that may begin with spaces would try each of a thousand of them.
_SPACES = re.compile(r"[^\S\n]+")
_MESSAGE_START = re.compile(r"\s*[\[{]")


def turns(text: str) -> list[Turn]:
    """What each speaker said, in order; without what only passed by."""
    text = text[:MOST_CHARS].encode("utf-8", "replace").decode("utf-8").replace("\x00", " ").replace("\r", "")
    text = _SPACES.sub(" ", dedent(text))
    messages = _messages(text)
    if messages is not None:
        return [turn for message in messages for turn in _spoken(_unfenced(_untagged(message)), "user")]
    lines = _unfenced(_untagged(text))
    return list(_spoken(lines, _unlabelled(lines)))


def _messages(text: str) -> list[str] | None:
    """The user's own texts, where the episode is JSON: one value, or one on each line."""
    if not _MESSAGE_START.match(text):
        return None
    try:
        values = [json.loads(text)]
    except (ValueError, RecursionError):
        lines = [line for line in text.splitlines() if line.strip()]
        if not all(line.lstrip().startswith("{") for line in lines):
            return None if text.lstrip().startswith("[") and _SPEAKER.match(lines[0]) else []
        values = [value for line in lines if (value := _json(line)) is not None]
    return [said for value in values for message in _listed(value) for said in _user_texts(message)]


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _listed(value: Any) -> list[Any]:
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        value = value["messages"]
    return value if isinstance(value, list) else [value]


def _user_texts(message: Any) -> Iterator[str]:
    if isinstance(message, dict) and any(message.get(mark) for mark in _WRITTEN_BY_CLIENT):
        return
    if isinstance(message, dict) and isinstance(message.get("message"), dict):
        message = message["message"]
    if not isinstance(message, dict) or str(message.get("role", "")).lower() not in _SPOKEN_BY_USER:
        return
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    for part in parts:
        if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
            yield part["text"]


def _untagged(text: str) -> str:
    """Without what stands in tags; what is opened and never closed takes the rest with it."""
    text = _COMMENT.sub(" ", text)
    for name in _closed_too_often(text):  # a page may close the tag that it stands in
        text = re.sub(rf"<{name}\b.*</{name}\s*>", " ", text, flags=re.S | re.I)
    kept, end, inside = [], 0, [""]
    for tag in _TAG.finditer(text):
        closing, name, empty = tag[1], tag[2].lower(), tag[3]
        if len(inside) == 1:
            kept.append(text[end : tag.start()])
        end = tag.end()
        if closing and name == inside[-1]:
            inside.pop()
        elif not closing and not empty and name not in _VOID_TAGS:
            inside.append(name)
    if len(inside) == 1:
        kept.append(text[end:])
    return " ".join(kept)


def _closed_too_often(text: str) -> list[str]:
    more_opened: Counter[str] = Counter()
    for tag in _TAG.finditer(text):
        if not tag[3]:
            more_opened[tag[2].lower()] += -1 if tag[1] else 1
    return [re.escape(name) for name, count in more_opened.items() if count < 0 and name not in _VOID_TAGS]


def _unfenced(text: str) -> list[str]:
    """The lines that are not in a fence, quoted, or printed by a machine."""
    lines, fenced = [], False
    for line in text.split("\n"):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and not _PRINTED.match(line):
            lines.append(line)
        else:
            lines.append("")
    return lines


def _before_letter(lines: list[str]) -> list[str]:
    letter = next((n for n, line in enumerate(lines) if _LETTER.match(line)), len(lines))
    return lines[:letter]


def _without_long_quotes(text: str) -> str:
    """Without quotations that go on over line ends; those within a line are seen sentence by sentence."""
    kept, rest = [], text
    while opened := _OPEN_QUOTE.search(rest):
        start = opened.start("straight") if opened["straight"] else opened.start("curly")
        close = rest.find('"' if opened["straight"] else "”", start + 1)
        if close < 0:
            break
        kept.append(rest[:start])
        rest = rest[close + 1 :]
    return QUOTED.join([*kept, rest])


@dataclass(frozen=True)
class _Label:
    voice: Voice
    name: str
    text: str


def _unlabelled(lines: list[str]) -> Voice:
    """Whose words stand under no label. Before a dialog, they may be anything: what was recalled, what a page said."""
    voices = {label.voice for line in lines if (label := _labelled(line))}
    if voices & {"user", "nobody"}:
        return "nobody"
    return "note" if _ABOUT_USER.search("\n".join(lines)) else "user"


def _spoken(lines: list[str], first: Voice) -> Iterator[Turn]:
    now, said = _Label(first, "", ""), list[str]()
    for line in lines:
        label = _labelled(line)
        if label and label.voice != "nobody" and now.voice == "nobody" and line[:1].isspace():
            label = None  # a dialog that a machine shows is set in
        if label is None:
            said.append(line)
            continue
        yield from _turn(now, said)
        # A note inside a dialog is in somebody's turn, and what a tool calls a note is none.
        now = label if label.voice != "note" or first == "note" else _Label("nobody", "", "")
        said = [now.text]
    yield from _turn(now, said)


def _turn(by: _Label, lines: list[str]) -> Iterator[Turn]:
    text = _without_long_quotes("\n".join(_before_letter(lines)))
    if text.strip() and by.voice != "nobody":
        yield Turn(by.voice, text, by.name)


def _labelled(line: str) -> _Label | None:
    """Whose words begin on this line, if a speaker's name opens it."""
    label = _label(line)
    if label is None or label.voice != "user":
        return label
    inner = _label(label.text)  # "User: [system] ..." is not the user's
    return inner if inner and inner.voice == "nobody" else label


def _label(line: str) -> _Label | None:
    if _MACHINE_BEGINS.match(line):
        return _Label("nobody", "", "")
    match = _SPEAKER.match(line)
    if match is None:
        return None
    name = next(match[kind] for kind in _KINDS_OF_LABEL if match[kind] is not None).strip()
    words = name.lower().split()
    if name.lower() in _HEADINGS:
        return None
    if name.lower() in _SPOKEN_BY_USER:
        return _Label("user", "", match["rest"])
    if name.lower() in _NOTE_LABELS:
        return _Label("note", "", match["rest"])
    if name.lower() in _NOBODY or not _MACHINES.isdisjoint(words):
        return _Label("nobody", "", "")
    if _CODE_NAME.fullmatch(name) and match["heading"] is None:
        return _Label("nobody", "", "")
    if match["heading"] is not None or not _NAME.fullmatch(name):
        return None
    is_task = _TASK.match(name) is not None  # "Summarize: ..."
    is_nobody = is_task or not NOT_A_SPEAKER.isdisjoint(words)
    return _Label("nobody", "", "") if is_nobody else _Label("other", name, match["rest"])
