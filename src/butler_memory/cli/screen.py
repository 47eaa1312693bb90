"""What reaches the terminal: JSON for machines, rich for people, and nothing that stored text could steer.

Stored text may hold markup, escape sequences or text-direction overrides. Everything that is not ours goes
through `safe`, which makes control characters visible and never parses markup.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console, RenderableType
from rich.status import Status
from rich.table import Table
from rich.text import Text

from butler_memory.errors import ButlerMemoryError

# In a pipe there is no width to keep to; 80 columns would fold ids and cut words.
PIPE_COLUMNS = 140
SHORTENED_CHARS = 300
# Left-to-right overrides and isolates can show "txt.exe" as "exe.txt"; joiners inside words and emoji stay.
_DIRECTION = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_CONTROL = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029]
_NEWLINE, _TAB = 0x0A, 0x09
_VISIBLE = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*_CONTROL, *_DIRECTION)
    if code not in (_NEWLINE, _TAB)
}


def neutral(text: str) -> str:
    """The same text with control characters spelled out; line breaks stay."""
    return text.translate(_VISIBLE).encode("utf-8", "backslashreplace").decode("utf-8")


def safe(value: object, style: str = "") -> Text:
    return Text(neutral(str(value)), style=style)


def short(text: str | None) -> Text:
    """One line of it, for tables."""
    if text is None:
        return Text("(no content)", style="dim")
    line = " ".join(neutral(text).split())
    return Text(line if len(line) <= SHORTENED_CHARS else line[: SHORTENED_CHARS - 1] + "…")


def moment(when: str | None) -> Text:
    return safe(when[:16].replace("T", " "), "dim") if when else Text("never", style="dim")


def out() -> Console:
    return _console(sys.stdout)


def err() -> Console:
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPE_COLUMNS
    return Console(file=stream, width=width, highlight=False, emoji=False, markup=False)


def any_encoding() -> None:
    """A terminal that cannot show a character shows its number, instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def show_json(shape: object) -> None:
    plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    sys.stdout.write(json.dumps(shape, ensure_ascii=plain, indent=2, default=str) + "\n")
    sys.stdout.flush()


def show(*parts: RenderableType) -> None:
    console = out()
    for part in parts:
        # Lines are not folded, so that an id, a token or a command can be copied in one piece.
        console.print(part, soft_wrap=isinstance(part, (str, Text)))


def note(text: str) -> None:
    """Beside the answer, so not on standard output."""
    err().print(safe(text, "yellow"), soft_wrap=True)


def show_error(error: ButlerMemoryError, *, as_json: bool) -> None:
    if as_json:
        show_json(error.as_dict())
        return
    console = err()
    console.print(Text("Error: ", style="bold red") + safe(error.message), soft_wrap=True)
    for name, value in error.data.items():
        console.print(safe(f"  {name}: {_listed(value)}"), soft_wrap=True)
    if error.recovery:
        console.print(safe(error.recovery, "dim"), soft_wrap=True)


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def table(*columns: str, rows: Iterable[Iterable[Text]], title: str = "") -> Table:
    """The first column is never folded: it is what people copy."""
    made = Table(title=title or None, title_justify="left", header_style="bold")
    for position, column in enumerate(columns):
        made.add_column(column, no_wrap=position == 0, overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def pairs(values: Mapping[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in values.items():
        grid.add_row(Text(name), value if isinstance(value, Text) else safe(value))
    return grid


class Waiting:
    """Says what is going on while a command takes long: a spinner on a terminal, lines elsewhere."""

    def __init__(self, first: str) -> None:
        self._console = err()
        self._status: Status | None = self._console.status(Text(first)) if self._console.is_terminal else None

    def say(self, step: str) -> None:
        if self._status is None:
            self._console.print(safe(step), soft_wrap=True)
        else:
            self._status.update(safe(step))

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()
