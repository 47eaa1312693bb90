"""How many tokens a text costs, by a real tokenizer that comes with the installation (C1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from butler_memory.errors import SetupError

O200K_BASE = "o200k_base"
# Two wheels carry the same vocabulary; the first is smaller, the second exists for every Python.
_O200K_PACKAGES = ("rs_bpe", "bpe_openai")


@dataclass(frozen=True)
class TokenCounter:
    name: str
    count: Callable[[str], int]


def token_counter(name: str, wordpiece_file: Callable[[], Path]) -> TokenCounter:
    """The counter that the settings name; SetupError where it is missing. Its data is loaded at first use."""
    if name != O200K_BASE:
        file = wordpiece_file()
        return TokenCounter(name, lambda text: _wordpiece(file)(text))
    if not any(find_spec(package) for package in _O200K_PACKAGES):
        raise SetupError(
            "The tokenizer 'o200k_base' is not installed.",
            recovery='Install butler-memory again, or set retrieval.tokenizer = "wordpiece".',
        )
    return TokenCounter(name, lambda text: _o200k()(text))


@lru_cache(maxsize=1)
def _o200k() -> Callable[[str], int]:
    if find_spec("rs_bpe"):
        from rs_bpe.bpe import openai

        counter: Callable[[str], int] = openai.o200k_base().count
        return counter
    import bpe_openai

    encoding = bpe_openai.get_encoding(O200K_BASE)
    return lambda text: len(encoding.encode(text))


@lru_cache(maxsize=1)
def _wordpiece(file: Path) -> Callable[[str], int]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
