"""A model whose SDK is loaded at its first reading: that takes seconds, and no start should wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from butler_memory.llm.ports import Model, Prompt, Reply


@dataclass
class LazyModel:
    name: str
    make: Callable[[], Model] = field(repr=False)  # it may hold a key
    _made: Model | None = field(default=None, init=False, repr=False)
    _making: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False)

    async def propose(self, prompt: Prompt) -> Reply:
        async with self._making:
            if self._made is None:
                self._made = await asyncio.to_thread(self.make)  # thousands of modules, off the event loop
        return await self._made.propose(prompt)

    async def close(self) -> None:
        if self._made is not None:
            await self._made.close()
