"""What a model said, as a proposal or as what is wrong with it. Pure, and safe on hostile text.

The whole text may be the JSON, or one JSON object may stand in prose or in a code fence. What must never happen is
that a part of a broken answer passes for a whole one: `{"new_facts": [{}` holds an object that would be a valid, empty
proposal, and the episodes would count as read. So the first thing that starts like an object and is none decides.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Never

from pydantic import ValidationError

from butler_memory.domain.proposal import Proposal
from butler_memory.llm.ports import Bad, BadOutput

LONGEST_ANSWER = 4_000_000  # characters; a full proposal of two hundred facts is a tenth of it
# Where JSON begins, in prose or out of it: `{"`, `{}`, a lone `{` at the end, or a list of objects or lists.
_START = re.compile(r'\{(?=\s*(?:["}]|\Z))|\[(?=\s*[{\[])')
_COMPLAINTS = 10
_COMPLAINT_LENGTH = 200  # characters: a complaint about an unknown key quotes it
_LITERALS = ("true", "false", "null")


@dataclass(frozen=True)
class Fault:
    """Why it is no proposal; `complaint` is for the model that wrote it and nobody else, since it may quote it."""

    reason: Bad
    complaint: str = field(default="", repr=False)


def read(text: str) -> Proposal:
    judged = judge(text)
    if isinstance(judged, Fault):
        raise BadOutput(judged.reason)
    return judged


def judge(text: str) -> Proposal | Fault:
    text = text.strip().removeprefix("\ufeff")
    if not text:
        return Fault(Bad.EMPTY)
    if len(text) > LONGEST_ANSWER:
        return Fault(Bad.TRUNCATED)  # it would be cut here; a smaller batch says less
    found = _the_object(text)
    return found if isinstance(found, Fault) else judge_value(found)


def judge_value(value: object) -> Proposal | Fault:
    """The same of what a decoder made of it already."""
    if value == {}:
        # What is left of a tool call that was cut off, or of one by a model that did not understand. Taken for
        # "nothing found", it would mark the episodes as read.
        return Fault(Bad.SCHEMA, "An empty object says nothing. Give every list; each may be empty.")
    try:
        return Proposal.model_validate(value)
    except ValidationError as error:
        return Fault(Bad.SCHEMA, _complaint(error))


def _the_object(text: str) -> object | Fault:
    decoder = json.JSONDecoder(object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
    found: list[object] = []
    position = 0
    while start := _START.search(text, position):
        try:
            value, position = decoder.raw_decode(text, start.start())
        except json.JSONDecodeError as error:
            cut = _is_cut(text, error)
            return Fault(Bad.TRUNCATED) if cut else Fault(Bad.NOT_JSON, f"The JSON is broken: {error.msg}.")
        except (ValueError, RecursionError):  # a key twice, NaN, endless digits, too deep
            return Fault(Bad.NOT_JSON, "The JSON is broken: too deep, or with a key twice or a number that is none.")
        found.append(value)
    whole = [value for value in found if value] or found  # `{}` in prose is a figure of speech
    if len(whole) != 1:
        return Fault(Bad.NOT_JSON, "There must be exactly one JSON object in the answer.")
    return whole[0]


def _is_cut(text: str, error: json.JSONDecodeError) -> bool:
    """Whether it would be JSON if it went on."""
    rest = text[error.pos :].strip()
    return not rest or error.msg.startswith("Unterminated string") or any(word.startswith(rest) for word in _LITERALS)


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key twice")
    return made


def _no_constant(name: str) -> Never:
    raise ValueError(name)


def _complaint(error: ValidationError) -> str:
    errors = error.errors(include_input=False, include_url=False, include_context=False)
    lines = (f"{'.'.join(map(str, one['loc'])) or 'the object'}: {one['msg']}" for one in errors[:_COMPLAINTS])
    return "\n".join(line[:_COMPLAINT_LENGTH] for line in lines)
