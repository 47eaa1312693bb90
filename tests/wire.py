"""A model's endpoint on loopback: speaks the Messages protocol and chat completions, and says what a test tells it to.

    with wire_server() as wire:              # or the fixture `wire`
        wire.says({"new_facts": [...]})          # a proposal, by tool call or as text: as the request asks
        wire.says("no JSON", Status(529), CUT)   # one item for each request that comes
        wire.says(lambda asked: {...})           # made from the request
        wire.otherwise = {"new_facts": []}       # what every further request gets
        ...
        assert wire.requests[0].said == "..."    # what the model would have read

A request that nothing was said for gets a 500.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

TOKENS_IN, TOKENS_OUT = 100, 20  # what each answer says it cost


@dataclass(frozen=True)
class Status:
    """An HTTP error; its body may quote the prompt, as some providers' do."""

    code: int
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None


@dataclass(frozen=True)
class Ended:
    """An answer that stopped for another reason than being done."""

    why: str  # "length" or "refusal"
    text: str = ""


STALL = object()  # never answers
CUT = object()  # hangs up without a word
Item = Any  # dict | str | Status | Ended | STALL | CUT | Callable[[Asked], Item]


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def said(self) -> str:
        """Everything the model would read, as one text."""
        return json.dumps([self.body.get("system"), self.body.get("messages")], ensure_ascii=False)

    @property
    def tools(self) -> list[str]:
        return [tool.get("name") or tool["function"]["name"] for tool in self.body.get("tools") or []]


@dataclass
class Wire:
    url: str = ""
    requests: list[Asked] = field(default_factory=list)
    script: deque[Item] = field(default_factory=deque)
    otherwise: Item = field(default_factory=lambda: Status(500, body={"error": "the test said nothing for this"}))
    stalled: threading.Event = field(default_factory=threading.Event)  # set once a request waits in vain

    def says(self, *items: Item) -> None:
        self.script.extend(items)

    def _next(self, asked: Asked) -> Item:
        item = self.script.popleft() if self.script else self.otherwise
        return item(asked) if callable(item) else item

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._answer(await _read(reader), writer)
        finally:
            writer.close()

    async def _answer(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        speak = next((speak for end, speak in _PROTOCOLS.items() if asked.path.endswith(end)), None)
        if asked.method != "POST" or not speak:
            await _send(writer, 404 if asked.method == "POST" else 200, {}, b"{}")
            return
        self.requests.append(asked)
        item = self._next(asked)
        if item is STALL:
            self.stalled.set()
            await asyncio.Event().wait()
        elif isinstance(item, Status):
            body = item.body if item.body is not None else {"error": {"type": "odd", "message": "no"}}
            await _send(writer, item.code, item.headers, json.dumps(body).encode())
        elif item is not CUT:
            media, payload = speak(item, asked.body)
            await _send(writer, 200, {"content-type": media}, payload)


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length") or 0))
    return Asked(method, path.partition("?")[0], headers, json.loads(body) if body else {})


async def _send(writer: asyncio.StreamWriter, code: int, headers: dict[str, str], body: bytes) -> None:
    told = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    writer.write(f"HTTP/1.1 {code} Said\r\n{head}\r\n".encode() + body)
    await writer.drain()


# --- the Messages protocol ------------------------------------------------------------------------------


def _messages(item: Item, body: dict[str, Any]) -> tuple[str, bytes]:
    block: dict[str, Any] = {"type": "text", "text": item.text if isinstance(item, Ended) else item}
    stop = {"length": "max_tokens", "refusal": "refusal"}[item.why] if isinstance(item, Ended) else "end_turn"
    if isinstance(item, dict):
        name = _wanted_tool(body)
        block = {"type": "text", "text": json.dumps(item)}
        if name:
            block, stop = {"type": "tool_use", "id": "toolu_1", "name": name, "input": item}, "tool_use"
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "content": [] if block.get("text") == "" else [block],
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": TOKENS_IN, "output_tokens": TOKENS_OUT},
    }
    if not body.get("stream"):
        return "application/json", json.dumps(message).encode()
    return "text/event-stream", b"".join(_event(event) for event in _as_stream(message))


def _wanted_tool(body: dict[str, Any]) -> str:
    """The tool by which a structured answer is to come, if it is to come by one."""
    choice = body.get("tool_choice") or {}
    names = [tool["name"] for tool in body.get("tools") or []]
    if choice.get("type") == "tool":
        return str(choice["name"])
    return names[0] if names else ""


def _as_stream(message: dict[str, Any]) -> list[dict[str, Any]]:
    content, usage = message["content"], message["usage"]
    opened = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": opened}]
    for index, block in enumerate(content):
        if block["type"] == "text":
            start, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            start = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        events += [
            {"type": "content_block_start", "index": index, "content_block": start},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    return [*events, {"type": "message_delta", "delta": end, "usage": usage}, {"type": "message_stop"}]


def _event(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


# --- chat completions -----------------------------------------------------------------------------------


def _chat(item: Item, body: dict[str, Any]) -> tuple[str, bytes]:
    said: dict[str, Any] = {"role": "assistant", "content": item if isinstance(item, str) else None}
    stop = "stop"
    if isinstance(item, Ended) and item.why == "length":
        said["content"], stop = item.text, "length"
    elif isinstance(item, Ended):
        said["refusal"] = item.text or "I will not."
    elif isinstance(item, dict) and body.get("tools"):
        function = {"name": body["tools"][0]["function"]["name"], "arguments": json.dumps(item)}
        said["tool_calls"], stop = [{"id": "call_1", "type": "function", "function": function}], "tool_calls"
    elif isinstance(item, dict):
        said["content"] = json.dumps(item)
    usage = {
        "prompt_tokens": TOKENS_IN,
        "completion_tokens": TOKENS_OUT,
        "total_tokens": TOKENS_IN + TOKENS_OUT,
    }
    answer = {
        "id": "chat_1",
        "object": "chat.completion",
        "created": 1,
        "model": body.get("model"),
        "choices": [{"index": 0, "message": said, "finish_reason": stop}],
        "usage": usage,
    }
    return "application/json", json.dumps(answer).encode()


_PROTOCOLS: dict[str, Callable[[Item, dict[str, Any]], tuple[str, bytes]]] = {
    "/messages": _messages,
    "/chat/completions": _chat,
}


@contextmanager
def wire_server() -> Iterator[Wire]:
    """In a thread of its own, so that a test may also wait for a command that asks it."""
    wire, loop = Wire(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="wire", daemon=True)
    thread.start()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(wire.serve, "127.0.0.1", 0)

    async def stop() -> None:
        server.close()
        serving = asyncio.all_tasks() - {asyncio.current_task()}  # those that stall
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    server = asyncio.run_coroutine_threadsafe(start(), loop).result()
    wire.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield wire
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
