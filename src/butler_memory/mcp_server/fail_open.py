"""A session starts with a call for its context and must not end with it (C6): what it gets when nobody can be asked.

Its prompt may be anything, even what the SDK cannot read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from mcp import types

from butler_memory.domain.requests import BuildContext, BuildContexts, parse, readable_prompt
from butler_memory.errors import InvalidInput, Unavailable
from butler_memory.mcp_server.answers import as_text, refused, rendered
from butler_memory.mcp_server.framing import failure
from butler_memory.retrieval.context import failed

Json = dict[str, Any]
Empty = Callable[[BuildContext], Json]


def fails_open(body: bytes) -> bool:
    return _for_a_session(_loaded(body))


def mended(body: bytes) -> bytes:
    """Half a character in the prompt of a session becomes U+FFFD; elsewhere it stays and is refused."""
    call = _loaded(body)
    if not _for_a_session(call):
        return body
    arguments = call["params"].get("arguments")
    items = arguments.get("requests") if isinstance(arguments, dict) else None
    for each in [arguments, *(items if isinstance(items, list) else [])]:
        if isinstance(each, dict) and "trigger_prompt" in each:
            each["trigger_prompt"] = readable_prompt(each["trigger_prompt"])
    return json.dumps(call).encode()


def unanswered(body: bytes, error: Unavailable, tokenizer: str) -> Json | None:
    """The answer to a request that could not be let through; None where there is no request."""
    message = types.jsonrpc_message_adapter.validate_json(body, by_name=False)
    if not isinstance(message, types.JSONRPCRequest):
        return None
    answer = _answer(message, error, tokenizer)
    return answer.model_dump(by_alias=True, mode="json")


def _answer(
    message: types.JSONRPCRequest, error: Unavailable, tokenizer: str
) -> types.JSONRPCResponse | types.JSONRPCError:
    if message.method != "tools/call":
        shape = error.as_dict() | {"request_context": {}}
        data = types.ErrorData(code=types.INTERNAL_ERROR, message=error.message, data=shape)
        return types.JSONRPCError(jsonrpc="2.0", id=message.id, error=data)
    params = message.params or {}
    arguments = params.get("arguments") or {}
    if not isinstance(arguments, Mapping):
        return failure(message.id, types.INVALID_PARAMS)

    def empty(request: BuildContext) -> Json:
        made = failed(error.reason or error.code, tokenizer)
        return {"block": made.block, **made.meta(), "request_context": request.request_context.given()}

    answer = _FAIL_OPEN.get(str(params.get("name")), lambda given, _: refused(error, given))
    result = _checked(answer, arguments, empty).model_dump(by_alias=True, mode="json", exclude_none=True)
    return types.JSONRPCResponse(jsonrpc="2.0", id=message.id, result=result)


Answer = Callable[[Mapping[str, Any], Empty], types.CallToolResult]


def _checked(answer: Answer, arguments: Mapping[str, Any], empty: Empty) -> types.CallToolResult:
    try:
        return answer(arguments, empty)
    except InvalidInput as error:
        return refused(error, arguments)


def _one(arguments: Mapping[str, Any], empty: Empty) -> types.CallToolResult:
    return as_text(empty(parse(BuildContext, arguments)))


def _many(arguments: Mapping[str, Any], empty: Empty) -> types.CallToolResult:
    batch = parse(BuildContexts, arguments)
    lineage = batch.request_context.given()
    return rendered({"results": [_item(item, lineage, empty) for item in batch.requests], "request_context": lineage})


def _item(item: Any, lineage: Mapping[str, str], empty: Empty) -> Json:
    given = item if isinstance(item, Mapping) else {"item": item}
    own = given.get("request_context")
    arguments = {**given, "request_context": lineage if own is None else own}
    try:
        return empty(parse(BuildContext, arguments))
    except InvalidInput as error:
        return refused(error, arguments).structured_content or {}


_FAIL_OPEN: Mapping[str, Answer] = {"memory_context": _one, "memory_context_batch": _many}


def _for_a_session(call: Any) -> bool:
    params = call.get("params") if isinstance(call, dict) and call.get("method") == "tools/call" else None
    return isinstance(params, dict) and params.get("name") in _FAIL_OPEN


def _loaded(body: bytes) -> Any:
    """Python reads what the SDK does not."""
    try:
        return json.loads(body.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return None
