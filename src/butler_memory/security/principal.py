"""Who is connected: tenant, butler and role come from the connection, never from an argument (T3)."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from butler_memory.domain.kinds import Role, TriggerClass
from butler_memory.errors import Forbidden, InvalidInput

GLOBAL = "global"
EVERYTHING = "*"


@dataclass(frozen=True)
class Principal:
    tenant: str
    butler: str
    role: Role
    token_id: UUID
    trigger_class: TriggerClass = TriggerClass.SESSION
    project: str = ""

    @property
    def actor(self) -> str:
        return f"{self.role}:{self.butler}"

    @property
    def own_scopes(self) -> tuple[str, ...]:
        """Nearest first: the declared project, the butler, then global."""
        project = (f"project:{self.project}",) if self.project else ()
        return (*project, self.butler, GLOBAL)

    @property
    def sees_all(self) -> bool:
        return self.role in (Role.ADMIN, Role.READER)

    def may_see(self, scope: str) -> bool:
        return self.sees_all or scope in self.own_scopes


def readable_scopes(who: Principal, asked: str | None) -> tuple[str, ...] | None:
    """The scopes a read covers; None means all of the tenant (S4)."""
    if asked is None:
        return who.own_scopes
    if asked == EVERYTHING:
        if who.sees_all:
            return None
        raise Forbidden("Scope '*' is for admin and reader tokens.", field="scope", reason="foreign_scope")
    if not who.may_see(asked):
        raise Forbidden("That scope belongs to another butler or project.", field="scope", reason="foreign_scope")
    return (asked,) if asked == GLOBAL else (asked, GLOBAL)


def writable_scope(who: Principal, asked: str) -> str:
    require_writer(who)
    if asked == EVERYTHING:
        raise InvalidInput("'scope' must name one scope.", field="scope", reason="bad_scope")
    if who.role is not Role.ADMIN and asked not in who.own_scopes:
        raise Forbidden(
            "You cannot write to another butler's or project's scope.", field="scope", reason="foreign_scope"
        )
    return asked


def require_writer(who: Principal) -> None:
    if who.role is Role.READER:
        raise Forbidden("A reader token cannot change anything.", reason="read_only", recovery="Use a butler token.")


def require_admin(who: Principal) -> None:
    if who.role is not Role.ADMIN:
        raise Forbidden("This needs an admin token.", reason="needs_admin")


def own_butler(who: Principal, asked: str | None) -> str:
    """The butler that a call speaks for: the caller's own, or whichever an admin names."""
    if asked is None or asked == who.butler:
        return who.butler
    if who.role is Role.ADMIN and asked not in (GLOBAL, EVERYTHING) and ":" not in asked:
        return asked
    raise Forbidden(
        "'butler' must be the butler this token belongs to.", field="butler", recovery="Leave 'butler' out.",
        reason="foreign_butler",
    )  # fmt: skip
