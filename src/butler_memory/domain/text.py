"""When are two texts the same? (F10, F11) Stored text is kept as given; only comparison normalises."""

from __future__ import annotations

import hashlib
import hmac
import re
import unicodedata
from functools import lru_cache
from typing import cast

import snowballstemmer

_USER_WORDS = frozenset({"me", "i", "my", "myself", "owner", "the_owner", "the_user", "user"})
_SPACES_AND_HYPHENS = re.compile(r"[\s\-‐‑–—]+")
_SPACES = re.compile(r"\s+")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*", re.UNICODE)
# Words whose presence does not change what a sentence asks for. Negations and quantifiers are not among them.
_FILLER = frozenset(
    "a an the is are was were be been being to of for in on at by with and that this it its please".split()
)
# With one of these, the order of the words is part of the meaning: "tea over coffee", "Anna before Bob".
_ORDER_MATTERS = frozenset(
    "before after over than from instead rather unless until then above below under if when".split()
)
_NEGATIONS = {"don't": "not", "doesn't": "not", "didn't": "not", "won't": "not", "can't": "not",
              "cannot": "not", "isn't": "not", "aren't": "not", "wasn't": "not", "weren't": "not",
              "shouldn't": "not", "wouldn't": "not", "couldn't": "not", "no": "not"}  # fmt: skip


def key(text: str) -> str:
    """The form in which subjects and predicates are compared."""
    folded = _fold(text)
    joined = _SPACES_AND_HYPHENS.sub("_", folded).strip("_")
    return joined or folded


def subject_key(subject: str) -> str:
    plain = key(subject)
    return "user" if plain in _USER_WORDS else plain


def same_form(content: str) -> str:
    """Two contents with the same form are the same content."""
    return _SPACES.sub(" ", _fold(content)).rstrip(" .!?;,…").strip()


def meaning(content: str) -> tuple[str, ...]:
    """The stemmed words with negations, numbers and names kept: equal means duplicate (F11).

    Cosine cannot decide this: opposites are closer than paraphrases.
    """
    words = [_plain_word(w) for w in _WORD.findall(_fold(content).replace("’", "'"))]
    stems = [_stem(w) for w in words if w not in _FILLER]
    if _ORDER_MATTERS.intersection(words):
        return tuple(stems)
    return tuple(sorted(set(stems)))


def digest(secret: bytes, *parts: str) -> str:
    """A keyed digest, so that a guessed content cannot be checked without the tenant's key."""
    joined = "\x1f".join(parts).encode("utf-8", "surrogatepass")
    return hmac.new(secret, joined, hashlib.sha256).hexdigest()[:32]


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold().strip()


def _plain_word(word: str) -> str:
    return _NEGATIONS.get(word, word.removesuffix("'s"))


@lru_cache(maxsize=8192)
def _stem(word: str) -> str:
    return cast(str, _STEMMER.stemWord(word))


_STEMMER = snowballstemmer.stemmer("english")
