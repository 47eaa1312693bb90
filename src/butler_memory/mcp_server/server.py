"""Parses a call, hands it to Memory, renders the answer or the error. Knows nothing of transports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams

from butler_memory import __version__
from butler_memory.errors import ButlerMemoryError, InvalidInput, Unavailable
from butler_memory.mcp_server.answers import as_text, log_without_content, refused, rendered
from butler_memory.mcp_server.framing import without_echo
from butler_memory.mcp_server.tools import INSTRUCTIONS, TOOLS, ToolSpec
from butler_memory.memory import Memory
from butler_memory.security.principal import Principal

Context = ServerRequestContext[Any, Any]
OFF = "The memory is switched off (enabled = false)."
FindPrincipal = Callable[[Context], Awaitable[Principal]]


def build_server(
    memory: Memory, principal_of: FindPrincipal, tools: Sequence[ToolSpec] = TOOLS, *, enabled: bool = True
) -> Server[Any]:
    """An MCP server with our tools, or without any; `principal_of` says who is calling, from the connection alone."""
    by_name = {tool.name: tool for tool in tools}
    listed = [tool.as_tool() for tool in tools] if enabled else []

    async def list_tools(_: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=listed)

    async def call_tool(context: Context, call: CallToolRequestParams) -> CallToolResult:
        arguments = call.arguments or {}
        try:
            if not enabled:  # a client may call a tool that it has listed before
                raise Unavailable(OFF, reason="disabled")
            tool = _find(by_name, call.name)
            answer = await tool.call(memory, await principal_of(context), arguments)
            return as_text(answer) if tool.plain else rendered(answer)
        except ButlerMemoryError as error:
            return refused(error, arguments)
        except Exception as error:  # noqa: BLE001  the caller's session must go on, whatever broke here
            log_without_content(call.name, error)
            return refused(Unavailable("The memory failed internally.", reason="internal"), arguments)

    server: Server[Any] = Server(
        "butler-memory",
        version=__version__,
        instructions=INSTRUCTIONS if enabled else OFF,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    server.middleware.append(without_echo)
    return server


def _find(by_name: Mapping[str, ToolSpec], name: str) -> ToolSpec:
    if name not in by_name:
        raise InvalidInput("There is no such tool.", reason="unknown_tool", recovery=f"Tools: {', '.join(by_name)}.")
    return by_name[name]
