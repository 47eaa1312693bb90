"""JSON schemas short enough to be read by a model: no titles, no null branches, enums in place."""

from __future__ import annotations

from typing import Any

from butler_memory.domain.requests import Request

_DROPPED = frozenset({"title", "description", "default"})


def input_schema(model: type[Request]) -> dict[str, Any]:
    full = model.model_json_schema()
    definitions = full.pop("$defs", {})
    properties = {name: _short(node, definitions) for name, node in full["properties"].items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if full.get("required"):
        schema["required"] = full["required"]
    return schema


def _short(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_short(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _short(definitions[node["$ref"].rsplit("/", 1)[1]], definitions)
    branches = [b for b in node.get("anyOf", []) if b != {"type": "null"}]
    if len(branches) == 1:  # null means omitted, and need not be said
        return _short(branches[0], definitions)
    return {name: _short(value, definitions) for name, value in node.items() if name not in _DROPPED}
