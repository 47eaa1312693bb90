"""Tokens: who may connect, as whom (G2)."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from butler_memory.domain.clock import Clock, new_id
from butler_memory.domain.kinds import Role, TriggerClass
from butler_memory.embedding.ports import Embedder
from butler_memory.errors import InvalidInput, NotFound, Unauthenticated
from butler_memory.postgres import access
from butler_memory.postgres.access import Token
from butler_memory.postgres.database import Conn, Database
from butler_memory.security.principal import Principal
from butler_memory.security.tokens import is_butler_name, new_token, token_hash

LONGEST_TENANT = 200


class Access:
    def __init__(self, database: Database, clock: Clock, embedder: Embedder, *, many_valued: bool) -> None:
        self._database = database
        self._clock = clock
        self._embedder = embedder
        self._many_valued = many_valued

    async def create_token(
        self,
        tenant: str,
        butler: str,
        role: Role,
        *,
        label: str = "",
        trigger_class: TriggerClass = TriggerClass.SESSION,
    ) -> tuple[str, Token]:
        """Makes the token, and its tenant if that is new. The secret is shown this once."""
        _check_names(tenant, butler)
        now = self._clock()
        secret = new_token()
        token = Token(tenant, new_id(now), butler, role, trigger_class, label, now, None)

        async def work(conn: Conn) -> None:
            await self._add_tenant(conn, tenant, now)
            await access.add_token(conn, token, token_hash(secret))

        await self._database.run_as_worker(work)
        return secret, token

    async def ensure_tenant(self, tenant: str) -> None:
        now = self._clock()
        await self._database.run_as_worker(lambda conn: self._add_tenant(conn, tenant, now))

    async def _add_tenant(self, conn: Conn, tenant: str, now: datetime) -> None:
        model = self._embedder
        await access.add_tenant(conn, tenant, self._many_valued, model.version, model.dimensions, now)

    async def authenticate(self, secret: str, project: str = "") -> Principal:
        """Looked up on every call, so that a revoked token stops working at once."""
        if not secret:
            raise Unauthenticated(reason="no_token")
        hashed = token_hash(secret)
        token = await self._database.run_as_worker(lambda conn: access.token_by_hash(conn, hashed))
        if token is None:
            raise Unauthenticated("This token is unknown or revoked.", reason="bad_token")
        return Principal(token.tenant_id, token.butler, token.role, token.id, token.trigger_class, project)

    async def tokens(self, tenant: str | None = None) -> list[Token]:
        return await self._database.run_as_worker(lambda conn: access.tokens(conn, tenant))

    async def revoke(self, token_id: UUID) -> None:
        now = self._clock()
        if not await self._database.run_as_worker(lambda conn: access.revoke(conn, token_id, now)):
            raise NotFound("There is no token with this id.", recovery="'butler-memory token list' shows them.")


def _check_names(tenant: str, butler: str) -> None:
    if not tenant.strip() or len(tenant) > LONGEST_TENANT or not tenant.isprintable():
        raise InvalidInput(f"A tenant's name has 1 to {LONGEST_TENANT} printable characters.", field="tenant")
    if not is_butler_name(butler):
        raise InvalidInput(
            "A butler's name is lower case letters, digits, '-' and '_', and is not 'global'.", field="butler"
        )
