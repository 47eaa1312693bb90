"""Which model makes a tenant's vectors: the engine's, or for a while an older one that it can still run (L5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from butler_memory.embedding.ports import Embedder


class Models:
    """What a process can run, and what it knows of each tenant. Each read finds out whether that is still so."""

    def __init__(self, current: Embedder, older: Sequence[Embedder] = ()) -> None:
        self.current = current
        self._by_version = {model.version: model for model in (*older, current)}
        self._others: dict[str, str] = {}  # only tenants that answer from another version than the engine's

    def version_of(self, tenant: str) -> str:
        """The version that the tenant answers from, as this process knows it."""
        return self._others.get(tenant, self.current.version)

    def of(self, version: str) -> Embedder | None:
        """None where this process does not have that model."""
        return self._by_version.get(version)

    def for_writing(self, tenant: str) -> Embedder:
        """What is stored now is found now where that can be; otherwise from the swap on."""
        return self.of(self.version_of(tenant)) or self.current

    def learn(self, tenant: str, version: str) -> None:
        if version == self.current.version:
            self._others.pop(tenant, None)
        else:
            self._others[tenant] = version

    def learn_all(self, others: Mapping[str, str]) -> None:
        """All tenants that answer from another version than the engine's."""
        self._others = dict(others)
