"""Storing rules against a real database: duplicates by meaning, and what must not be learned again (R1, R4, R8)."""

from __future__ import annotations

from typing import Any

import pytest

from butler_memory.errors import Conflict
from butler_memory.postgres.provision import Urls
from butler_memory.security.principal import Principal
from caller import Caller, conflict, forbidden
from conftest import Hands, MakePrincipal, owner_connection, rows


@pytest.fixture(autouse=True)
def _ledger(request: pytest.FixtureRequest) -> None:
    if "by_hand" not in request.keywords["pytestmark" and "usefixtures"].args if False else []:
        pass
