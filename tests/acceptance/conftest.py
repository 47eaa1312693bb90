"""The commands under test use the real model, as on a user's machine after the first `up`."""

from __future__ import annotations

import pytest

from butler_memory.embedding.model_store import prepare
from butler_memory.settings import load


@pytest.fixture(scope="session", autouse=True)
def model_at_hand() -> None:
    """On a fresh machine this fetches it; a test that runs first must not see another world than the rest."""
    prepare(load(environ={}).env.model_cache, None, print)
