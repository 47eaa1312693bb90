"""Parses a call, hands it to Memory, renders the answer or the error. Knows nothing of transports."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent

from butler_memory import __version__
from butler_memory.domain.requests import RequestContext, parse
from butler_memory.errors import ButlerMemoryError, InvalidInput, Unavailable
from butler_memory.mcp_server.tools import INSTRUCTIONS, TOOLS, ToolSpec
from butler_memory.memory import Memory
from butler_memory.security.principal import Principal

Context = ServerRequestContext[Any, Any]
FindPrincipal = Callable[[Context], Awaitable[Principal]]

log = logging.getLogger(__name__)


def build_server(memory: Memory, principal_of: FindPrincipal, tools: Sequence[ToolSpec] = TOOLS) -> Server[Any]:
    """An MCP server with our tools; `principal_of` says who is calling, from the connection alone."""
    by_name = {tool.name: tool for tool in tools}
    listed = [tool.as_tool() for tool in tools]

    async def list_tools(_: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=listed)

    async def call_tool(context: Context, call: CallToolRequestParams) -> CallToolResult:
        arguments = call.arguments or {}
        try:
            tool = _find(by_name, call.name)
            answer = await tool.call(memory, await principal_of(context), arguments)
            return _as_text(answer) if tool.plain else _rendered(answer)
        except ButlerMemoryError as error:
            return _refused(error, arguments)
        except Exception as error:  # noqa: BLE001  the caller's session must go on, whatever broke here
            _log_without_content(call.name, error)
            return _refused(Unavailable("The memory failed internally.", reason="internal"), arguments)

    return Server(
        "butler-memory",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _find(by_name: Mapping[str, ToolSpec], name: str) -> ToolSpec:
    if name not in by_name:
        raise InvalidInput("There is no such tool.", reason="unknown_tool", recovery=f"Tools: {', '.join(by_name)}.")
    return by_name[name]


def _rendered(answer: dict[str, Any], *, is_error: bool = False) -> CallToolResult:
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=answer, is_error=is_error)


def _as_text(answer: dict[str, Any]) -> CallToolResult:
    """The block alone is what the model reads; what is said about it goes beside it."""
    about = {name: value for name, value in answer.items() if name != "block"}
    return CallToolResult(content=[TextContent(type="text", text=answer["block"])], _meta=about)


def _refused(error: ButlerMemoryError, arguments: Mapping[str, Any]) -> CallToolResult:
    return _rendered(error.as_dict() | {"request_context": _lineage(arguments)}, is_error=True)


def _lineage(arguments: Mapping[str, Any]) -> dict[str, str]:
    """The caller's own ids, given back where they are well-formed (T2)."""
    given = arguments.get("request_context")
    if not isinstance(given, Mapping):
        return {}
    try:
        return parse(RequestContext, given).given()
    except InvalidInput:
        return {}


def _log_without_content(tool: str, error: Exception) -> None:
    """Where it broke, not what it said: messages of foreign exceptions may quote what was stored (G7)."""
    where = "".join(traceback.format_tb(error.__traceback__)[-3:])
    log.error("%s failed with %s at\n%s", tool, type(error).__name__, where)
