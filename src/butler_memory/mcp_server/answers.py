"""How an answer or an error looks to a client (appendix B)."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Mapping
from typing import Any

from mcp.types import CallToolResult, TextContent

from butler_memory.domain.requests import RequestContext, parse
from butler_memory.errors import ButlerMemoryError, InvalidInput

log = logging.getLogger(__name__)


def rendered(answer: dict[str, Any], *, is_error: bool = False) -> CallToolResult:
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=answer, is_error=is_error)


def as_text(answer: dict[str, Any]) -> CallToolResult:
    """The block alone is what the model reads; what is said about it goes beside it."""
    about = {name: value for name, value in answer.items() if name != "block"}
    return CallToolResult(content=[TextContent(type="text", text=answer["block"])], _meta=about)


def refused(error: ButlerMemoryError, arguments: Mapping[str, Any]) -> CallToolResult:
    return rendered(error.as_dict() | {"request_context": _lineage(arguments)}, is_error=True)


def _lineage(arguments: Mapping[str, Any]) -> dict[str, str]:
    """The caller's own ids, given back where they are well-formed (T2)."""
    given = arguments.get("request_context")
    if not isinstance(given, Mapping):
        return {}
    try:
        return parse(RequestContext, given).given()
    except InvalidInput:
        return {}


def log_without_content(what: str, error: Exception) -> None:
    """Where it broke, not what it said: messages of foreign exceptions may quote what was stored (G7)."""
    where = "".join(traceback.format_tb(error.__traceback__)[-3:])
    log.error("%s failed with %s at\n%s", what, type(error).__name__, where)
