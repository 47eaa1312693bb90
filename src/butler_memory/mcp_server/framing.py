"""What the SDK cannot read is answered here: its own words quote what was sent (G7), or it says nothing."""

from __future__ import annotations

import json
from typing import Any

from mcp import types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from butler_memory.domain.requests import parse
from butler_memory.errors import InvalidInput, Unavailable
from butler_memory.mcp_server.answers import log_without_content, refused
from butler_memory.mcp_server.tools import TOOLS

_TOOLS = {tool.name: tool for tool in TOOLS}
_WORDS = {
    types.PARSE_ERROR: "This is not JSON.",
    types.INVALID_REQUEST: "This is not one JSON-RPC 2.0 request or notification.",
    types.METHOD_NOT_FOUND: "There is no such method.",
    types.INVALID_PARAMS: "The parameters do not fit this method.",
}
_INTERNAL = "The memory failed internally."


def refusal(body: bytes) -> types.JSONRPCResponse | types.JSONRPCError | None:
    """None for what the SDK can read; otherwise the answer, under the request's id where it has one."""
    try:
        types.jsonrpc_message_adapter.validate_json(body, by_name=False)
    except ValidationError:
        return _refusal(body)
    return None


def _refusal(body: bytes) -> types.JSONRPCResponse | types.JSONRPCError:
    """Python reads what the SDK does not: halves of characters, in UTF-8 or as \\ud83d."""
    try:
        given = json.loads(body.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return failure(None, types.PARSE_ERROR)
    if not isinstance(given, dict):
        return failure(None, types.INVALID_REQUEST)
    request_id = _request_id(given.get("id"))
    if request_id is not None and given.get("method") == "tools/call" and isinstance(given.get("params"), dict):
        answer = _what_is_wrong(given["params"])
        if answer is not None:
            shape = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
            return types.JSONRPCResponse(jsonrpc="2.0", id=request_id, result=shape)
    return failure(request_id, types.INVALID_REQUEST)


def failure(request_id: types.RequestId | None, code: int) -> types.JSONRPCError:
    return types.JSONRPCError(jsonrpc="2.0", id=request_id, error=_plain(code))


def _request_id(given: Any) -> types.RequestId | None:
    if isinstance(given, bool) or not isinstance(given, (int, str)):
        return None
    try:
        str(given).encode()
    except ValueError:  # half a character, or an integer longer than Python will print
        return None
    return given


def _what_is_wrong(params: dict[str, Any]) -> types.CallToolResult | None:
    """What the tool itself would say, had the call come through."""
    tool = _TOOLS.get(str(params.get("name")))
    arguments = params.get("arguments")
    if tool is None or not isinstance(arguments, dict):
        return None
    try:
        parse(tool.request, arguments)
    except InvalidInput as error:
        return refused(error, arguments)
    return None


def _plain(code: int) -> types.ErrorData:
    words = _WORDS.get(code)
    wrong = InvalidInput(words, reason="protocol") if words else Unavailable(_INTERNAL, reason="internal")
    return types.ErrorData(code=code, message=wrong.message, data=wrong.as_dict() | {"request_context": {}})


async def without_echo(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Middleware: refusals of the SDK, and what broke in it, without the words of the caller."""
    try:
        return await call_next(ctx)
    except MCPError as error:
        code = error.error.code
    except ValidationError:
        code = types.INVALID_PARAMS
    except Exception as error:  # noqa: BLE001  the SDK would send its message
        log_without_content("a request", error)
        code = types.INTERNAL_ERROR
    raise MCPError.from_error_data(_plain(code))
