"""Bearer tokens: shown once, stored as a hash (G2)."""

from __future__ import annotations

import hashlib
import re
import secrets

PREFIX = "bm_"
_BUTLER = re.compile(r"^[a-z0-9][a-z0-9_-]{0,62}$")
_RESERVED = frozenset({"global"})


def new_token() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def token_hash(token: str) -> str:
    """A plain digest is enough: a token has 256 random bits, so there is nothing to guess."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def is_butler_name(name: str) -> bool:
    return bool(_BUTLER.fullmatch(name)) and name not in _RESERVED
