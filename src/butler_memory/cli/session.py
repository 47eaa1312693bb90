"""Which memory a command works on, as whom, and how it answers.

Heavy parts (settings, engine, model) are imported when a command needs them: `--help` must be quick.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import NAMESPACE_URL, uuid5

import typer

from butler_memory.cli import screen

if TYPE_CHECKING:
    from rich.console import RenderableType

    from butler_memory.bootstrap import Engine
    from butler_memory.security.principal import Principal
    from butler_memory.settings import Settings

T = TypeVar("T")

HOME = "home"
BUTLER = "cli"


@dataclass(frozen=True)
class Session:
    """The options that commands share."""

    json: bool = False
    tenant: str = HOME
    data_dir: Path | None = None
    config: Path | None = None

    def settings(self, **environ: str) -> Settings:
        """butler.toml, the environment over it, and this command's options over both."""
        from butler_memory.settings import PREFIX, load

        if self.data_dir is not None:
            environ["data_dir"] = str(self.data_dir.expanduser().absolute())
        return load(self.config, {**os.environ, **{PREFIX + name.upper(): text for name, text in environ.items()}})

    def answer(self, shape: object, *human: RenderableType) -> None:
        if self.json:
            screen.show_json(shape)
        else:
            screen.show(*human)

    @asynccontextmanager
    async def engine(self, *, embeds: bool = False) -> AsyncIterator[Engine]:
        """The engine; `embeds` when the command stores text, which is the only use of the model here."""
        from butler_memory.bootstrap import open_engine
        from butler_memory.cli import model

        settings = self.settings()
        usable = embeds and model.is_at_hand(settings)
        with screen.Waiting("Opening the memory") as waiting:
            embedder = None if usable else model.NoModel()
            async with open_engine(settings, progress=waiting.say, embedder=embedder) as engine:
                if usable:
                    await model.warm(engine.embedder, waiting.say)
                waiting.stop()
                yield engine

    @asynccontextmanager
    async def memory(self, *, embeds: bool = False) -> AsyncIterator[tuple[Engine, Principal]]:
        async with self.engine(embeds=embeds) as engine:
            yield engine, await _operator(engine, self.tenant)

    @asynccontextmanager
    async def every_memory(self) -> AsyncIterator[tuple[Engine, list[Principal]]]:
        """The engine, and an admin of each tenant that there is."""
        from butler_memory.postgres import access

        async with self.engine() as engine:
            tenants = await engine.database.run_as_worker(access.tenants)
            yield engine, [await _operator(engine, tenant) for tenant in tenants]


async def _operator(engine: Engine, tenant: str) -> Principal:
    """An admin of the tenant: by the token that `up` keeps, or as whoever may open the database anyway."""
    from butler_memory.bootstrap import restricted
    from butler_memory.domain.kinds import Role
    from butler_memory.security.principal import Principal

    who = await _by_kept_token(engine, tenant)
    if who is None:
        await require_tenant(engine, tenant)
        who = Principal(tenant, BUTLER, Role.ADMIN, uuid5(NAMESPACE_URL, "butler-memory:cli"))
    return restricted(who, engine.settings)


async def _by_kept_token(engine: Engine, tenant: str) -> Principal | None:
    from butler_memory.domain.kinds import Role
    from butler_memory.errors import Unauthenticated

    with suppress(OSError, UnicodeDecodeError, Unauthenticated):
        secret = (engine.settings.env.data_dir / "admin-token").read_text().strip()
        who = await engine.access.authenticate(secret)
        if who.tenant == tenant and who.role is Role.ADMIN:
            return who
    return None


async def require_tenant(engine: Engine, tenant: str) -> None:
    """The home is made when it is missing; another tenant is not, or a slip of the finger would found one."""
    from butler_memory.errors import NotFound
    from butler_memory.postgres import access

    if tenant == HOME:
        await engine.access.ensure_tenant(tenant)
    elif tenant not in await engine.database.run_as_worker(access.tenants):
        raise NotFound(
            "There is no tenant with this name.",
            recovery="'butler-memory token create --tenant NAME' makes one; 'token list' shows those in use.",
            field="tenant",
        )


def run(work: Coroutine[Any, Any, T]) -> T:
    import asyncio

    return asyncio.run(work)


_OPTIONS = {
    "json": (Annotated[bool, typer.Option("--json", help="Answer in JSON on standard output.")], False),
    "tenant": (Annotated[str, typer.Option("--tenant", metavar="NAME", help="Whose memory.")], HOME),
    "data_dir": (
        Annotated[Path | None, typer.Option("--data-dir", metavar="DIR", help="Where the embedded database lives.")],
        None,
    ),
    "config": (Annotated[Path | None, typer.Option("--config", metavar="FILE", help="A settings file.")], None),
}


def command(function: Callable[..., None], *options: str) -> Callable[..., None]:
    """`function` as typer wants it: the shared `options` become parameters, and it gets them as one Session."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)
        for name, (hint, default) in _OPTIONS.items()
        if name in options
    ]

    @functools.wraps(function)
    def call(**given: Any) -> None:
        function(Session(**{name: given.pop(name) for name in options}), **given)

    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    call.__signature__ = inspect.Signature([*keyword_only, *shared])  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *shared]}
    return call
