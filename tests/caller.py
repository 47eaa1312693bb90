"""A caller in few words: one engine, one principal, and the arguments that a test cares about."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from butler_memory.errors import Conflict, Forbidden, InvalidInput
from butler_memory.memory import Memory
from butler_memory.security.principal import Principal

Json = dict[str, Any]


@dataclass(frozen=True)
class Caller:
    memory: Memory
    who: Principal
    session: str = ""

    def in_session(self, session: str) -> Caller:
        return replace(self, session=session)

    def as_(self, who: Principal) -> Caller:
        return replace(self, who=who)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Json:
        context = {"request_context": {"session_id": self.session}} if self.session else {}
        answer: Json = await getattr(self.memory, name)(self.who, {**context, **arguments})
        return answer

    async def fact(self, content: str, predicate: str = "employer", subject: str = "user", **more: Any) -> Json:
        return await self.call("store_fact", {"subject": subject, "predicate": predicate, "content": content, **more})

    async def user_says(self, content: str, predicate: str = "employer", **more: Any) -> Json:
        return await self.fact(content, predicate, source_kind="user_stated", **more)

    async def rule(self, content: str, **more: Any) -> Json:
        return await self.call("store_rule", {"content": content, **more})

    async def episode(self, content: str, **more: Any) -> Json:
        return await self.call("store_episode", {"content": content, **more})

    async def shape(self, written: Mapping[str, Any]) -> Json:
        """Everything memory_get says about what a write returned."""
        return await self.call("get", named(written))

    async def row(self, written: Mapping[str, Any]) -> Json:
        memory: Json = (await self.shape(written))["memory"]
        return memory

    async def confirm(self, written: Mapping[str, Any]) -> Json:
        return await self.call("confirm", named(written))

    async def forget(self, written: Mapping[str, Any]) -> Json:
        return await self.call("forget", named(written))

    async def restore(self, written: Mapping[str, Any], **more: Any) -> Json:
        return await self.call("restore", {**named(written), **more})

    async def edit(self, written: Mapping[str, Any], **more: Any) -> Json:
        return await self.call("edit", {**named(written), **more})


def named(written: Mapping[str, Any]) -> Json:
    return {"type": written["type"], "id": written["id"]}


def conflict(reason: str) -> AbstractContextManager[pytest.ExceptionInfo[Conflict]]:
    return pytest.raises(Conflict, check=lambda error: error.reason == reason)


def forbidden(reason: str) -> AbstractContextManager[pytest.ExceptionInfo[Forbidden]]:
    return pytest.raises(Forbidden, check=lambda error: error.reason == reason)


def refused(reason: str) -> AbstractContextManager[pytest.ExceptionInfo[InvalidInput]]:
    return pytest.raises(InvalidInput, check=lambda error: error.reason == reason)
