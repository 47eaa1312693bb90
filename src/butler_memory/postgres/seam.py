"""Where the driver's errors become ours: connecting, and running work."""

from __future__ import annotations

import psycopg
from psycopg import AsyncConnection, errors

from butler_memory.errors import ButlerMemoryError, Integrity, SetupError, Unavailable

CONNECT_TIMEOUT_SECONDS = 10

# Another process or transaction was faster; the same work succeeds when it is done again.
PASSING = (errors.DeadlockDetected, errors.SerializationFailure, errors.UniqueViolation)


class Contended(Exception):
    """The row moved on between reading and writing it; the work is done again."""


async def explained_connect(conninfo: str) -> AsyncConnection[object]:
    """One autocommit connection, or a SetupError that says what is wrong with it."""
    try:
        return await AsyncConnection.connect(conninfo, autocommit=True, connect_timeout=CONNECT_TIMEOUT_SECONDS)
    except psycopg.Error as error:
        raise connect_problem(error) from None


def connect_problem(error: psycopg.Error) -> ButlerMemoryError:
    """libpq gives no SQLSTATE when it cannot connect, so its (content-free) message must tell."""
    said = str(error).lower()
    if "password authentication failed" in said or "no password supplied" in said:
        return SetupError(
            "PostgreSQL refused the password.",
            recovery="Correct the password in the URL, or run 'butler-memory db provision' again.",
        )
    if "does not exist" in said:
        return SetupError(
            "The database or role named in the URL does not exist.",
            recovery="Run 'butler-memory db provision --admin-url ...' once.",
        )
    if "permission denied" in said or "not permitted to log in" in said or "no pg_hba.conf entry" in said:
        return SetupError(
            "PostgreSQL does not let this role into the database.",
            recovery="Grant it CONNECT (and an entry in pg_hba.conf), or run 'butler-memory db provision'.",
        )
    if isinstance(error, psycopg.ProgrammingError):  # libpq could not even read it
        return SetupError(
            "The database URL is malformed.", recovery="Write it as postgresql://user:password@host/name."
        )
    return Unavailable(
        "PostgreSQL does not answer.",
        recovery="Check that the server runs and that host and port in the URL are right.",
    )


def translated(error: psycopg.Error) -> ButlerMemoryError:
    """Our word for what the database said. Never its message: that may carry content (G7)."""
    constraint = error.diag.constraint_name or ""
    match error:
        case errors.QueryCanceled() | errors.LockNotAvailable():
            return Unavailable("The database took too long.", reason="timeout")
        case errors.InsufficientPrivilege():
            return Integrity("The database refused the change.", reason="insufficient_privilege")
        case errors.DiskFull() | errors.OutOfMemory():
            return Unavailable("The database has no space left.", reason="out_of_space")
        case errors.IntegrityError():
            return Integrity(reason=constraint or "constraint")
        case errors.UndefinedTable() | errors.UndefinedColumn():
            return SetupError(
                "The database schema does not fit this version.", recovery="Run 'butler-memory db migrate'."
            )
        case psycopg.OperationalError():
            return Unavailable("The database connection was lost.", reason="connection_lost")
        case _:
            return Integrity(reason=error.sqlstate or "database")
