"""token create, list, revoke: who may connect (G2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer
from rich.text import Text

from butler_memory.cli import screen
from butler_memory.cli.session import Session, run
from butler_memory.domain.kinds import Role, TriggerClass

if TYPE_CHECKING:
    from butler_memory.postgres.access import Token

LONGEST_LABEL = 200


def create(
    session: Session,
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="Whose memory; made if it is new.")],
    butler: Annotated[str, typer.Option(metavar="NAME", help="Who connects, e.g. health.")],
    role: Annotated[Role, typer.Option(help="What it may do.")],
    label: Annotated[str, typer.Option(help="A note for 'token list'.")] = "",
    maintenance: Annotated[
        bool, typer.Option("--maintenance", help="For maintenance sessions, which never become episodes.")
    ] = False,
) -> None:
    """Make a token. It is shown this once and stored only as a hash."""
    if len(label) > LONGEST_LABEL:
        raise typer.BadParameter(f"--label has at most {LONGEST_LABEL} characters")
    trigger = TriggerClass.MAINTENANCE if maintenance else TriggerClass.SESSION
    run(_create(session, tenant, butler, role, label, trigger))


async def _create(session: Session, tenant: str, butler: str, role: Role, label: str, trigger: TriggerClass) -> None:
    async with session.engine() as engine:
        secret, token = await engine.access.create_token(tenant, butler, role, label=label, trigger_class=trigger)
    session.answer(
        {"token": secret, **_shape(token)},
        Text(secret, style="bold"),
        screen.safe(f"A {role} token for {butler} of {tenant}. Keep it: it is not shown again.", "dim"),
    )


def list_(
    session: Session,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant's.")] = None,
) -> None:
    """Show all tokens, revoked ones too; never their secrets."""
    run(_list(session, tenant))


async def _list(session: Session, tenant: str | None) -> None:
    async with session.engine() as engine:
        found = await engine.access.tokens(tenant)
    rows = ([screen.safe(value or "") for value in _row(token)] for token in found)
    human = screen.table("ID", "Tenant", "Butler", "Role", "Kind", "Label", "Made", "Revoked", rows=rows)
    session.answer({"tokens": [_shape(token) for token in found]}, human if found else Text("There are no tokens."))


def revoke(
    session: Session, id_: Annotated[UUID, typer.Argument(metavar="ID", help="As 'token list' shows it.")]
) -> None:
    """Make a token useless at once."""
    run(_revoke(session, id_))


async def _revoke(session: Session, token_id: UUID) -> None:
    async with session.engine() as engine:
        await engine.access.revoke(token_id)
    session.answer({"id": str(token_id), "revoked": True}, screen.safe(f"Token {token_id} is revoked."))


def _shape(token: Token) -> dict[str, Any]:
    return {
        "id": str(token.id),
        "tenant": token.tenant_id,
        "butler": token.butler,
        "role": token.role.value,
        "trigger_class": token.trigger_class.value,
        "label": token.label,
        "created_at": token.created_at.isoformat(),
        "revoked_at": token.revoked_at.isoformat() if token.revoked_at else None,
    }


def _row(token: Token) -> list[str | None]:
    shape = _shape(token)
    times = [shape[name] and shape[name][:16].replace("T", " ") for name in ("created_at", "revoked_at")]
    return [*(shape[name] for name in ("id", "tenant", "butler", "role", "trigger_class", "label")), *times]
