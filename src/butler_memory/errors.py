"""Everything that can go wrong, said so that a model or a person can act on it.

    ButlerMemoryError                 code             meaning
    ├── InvalidInput               invalid_input    an argument is missing, malformed or out of range
    │   └── TooLarge               too_large        a text, list or batch is over its limit
    ├── Unauthenticated            unauthenticated  no token, or one that is unknown or revoked
    ├── Forbidden                  forbidden        known caller, foreign scope or too small a role
    ├── NotFound                   not_found        no such memory for this caller
    ├── Conflict                   conflict         the memory's state does not allow it
    ├── RateLimited                rate_limited     too many at once; try again
    ├── Unavailable                unavailable      a part (database, model) does not answer
    ├── Integrity                  integrity        an invariant would break; nothing was changed
    └── SetupError                 setup            the installation or configuration is wrong

No message ever carries stored or submitted content (SPEC G7): only names, limits and states.
"""

from __future__ import annotations

from typing import Any, ClassVar


class ButlerMemoryError(Exception):
    """Something went wrong in the memory."""

    code: ClassVar[str] = "integrity"
    default_recovery: ClassVar[str] = ""

    def __init__(
        self, message: str = "", *, recovery: str = "", field: str = "", reason: str = "", **data: Any
    ) -> None:
        self.message = message or (self.__doc__ or "").strip()
        self.recovery = recovery or self.default_recovery
        self.field = field
        self.reason = reason
        self.data = data
        super().__init__(self.message)

    def as_dict(self) -> dict[str, Any]:
        """The error shape of SPEC appendix B, without the request context that the front adds."""
        shape: dict[str, Any] = {
            "error": self.code,
            "reason": self.reason or None,
            "message": self.message,
            "recovery": self.recovery or None,
            "field": self.field or None,
        }
        if self.data:
            shape["data"] = self.data
        return shape


class InvalidInput(ButlerMemoryError):
    """An argument is missing, malformed or out of range."""

    code = "invalid_input"
    default_recovery = "Correct the argument and call again; nothing was written."


class TooLarge(InvalidInput):
    """The input is over its size limit."""

    code = "too_large"
    default_recovery = "Shorten or split it and call again; nothing was written."


class Unauthenticated(ButlerMemoryError):
    """A valid token is needed."""

    code = "unauthenticated"
    default_recovery = "Send 'Authorization: Bearer <token>'; 'butler-memory token create' makes one."


class Forbidden(ButlerMemoryError):
    """This caller may not do that."""

    code = "forbidden"
    default_recovery = "Use your own scope or 'global', or ask for an admin token."


class NotFound(ButlerMemoryError):
    """No such memory."""

    code = "not_found"
    default_recovery = "Check type and id; search for the memory instead of guessing its id."


class Conflict(ButlerMemoryError):
    """The memory's state does not allow that."""

    code = "conflict"


class RateLimited(ButlerMemoryError):
    """Too many requests at once."""

    code = "rate_limited"
    default_recovery = "Wait a second and call again."


class Unavailable(ButlerMemoryError):
    """The memory is not reachable right now."""

    code = "unavailable"
    default_recovery = "Go on without memory and try again later."


class Integrity(ButlerMemoryError):
    """The change would break an invariant of the memory; nothing was changed."""

    code = "integrity"
    default_recovery = "Report this: it is a defect of the memory, not of your call."


class SetupError(ButlerMemoryError):
    """The installation or its configuration is wrong."""

    code = "setup"
