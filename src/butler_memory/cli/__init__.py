"""The command `butler-memory`: parses words, calls the engine, shows what came back."""

from __future__ import annotations


def main() -> None:
    # Here, so that importing the package costs nothing.
    from butler_memory.cli.app import run

    run()
