"""The proposal's JSON schema as models are shown it.

Only the shape: lengths, counts and patterns are left out or told in words, because constrained decoders refuse or
unroll them, each another one, and `reading` checks them anyway. Every property is required, so that none is forgotten
half-way; what may be absent may be null.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from butler_memory.domain.proposal import Proposal

_KEPT = ("type", "description", "enum", "const", "$ref")
_BELOW = ("properties", "$defs")
_IN_WORDS = {"ge": "at least", "gt": "more than", "le": "at most", "pattern": "matches"}


@cache
def proposal_schema() -> dict[str, Any]:
    return _lean(Proposal.model_json_schema())


def _lean(node: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {name: node[name] for name in _KEPT if name in node}
    for name in _BELOW:
        if name in node:
            kept[name] = {key: _lean(below) for key, below in node[name].items()}
    if "items" in node:
        kept["items"] = _lean(node["items"])
    if "anyOf" in node:
        kept["anyOf"] = [_lean(below) for below in node["anyOf"]]
    limits = [f"{word} {node[name]}" for name, word in _IN_WORDS.items() if name in node]
    if limits:
        kept["description"] = ", ".join(limits)
    if "properties" in node:
        kept["required"] = list(node["properties"])
        kept["additionalProperties"] = False
    return kept
