"""When are two texts the same? (F10, F11) Stored text is kept as given; only comparison normalises."""

from __future__ import annotations

import hashlib
import hmac
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import cast

import snowballstemmer

_USER_WORDS = frozenset({"me", "i", "my", "myself", "owner", "the_owner", "the_user", "user"})
_SPACES_AND_HYPHENS = re.compile(r"[\s\-‐‑–—]+")
_SPACES = re.compile(r"\s+")
# What ends a word. Everything else belongs to one: emoji and the vowel signs of Hindi or Thai change what is said.
_GAP = r"\s!-/:-@\[-`{-~¡¿«»·\u2010-\u206f\u3000-\u303f"
_WORD = re.compile(
    rf"(?<![^{_GAP}])[-+−]?[$€£¥]?\d+(?:[.,:/-]\d+)*[%°]?"  # a number, amount, time or date is one word
    rf"|[^{_GAP}]+(?:'[^{_GAP}]+)*[+#]*"  # C++ and C# are not C
)
_WORD_OR_END = re.compile(rf"{_WORD.pattern}|\n")
_NOT = re.compile(r"\b(?:(ca|wo|sha|[a-z]+)n't|(can)not)\b")
_IRREGULAR = {"ca": "can", "wo": "will", "sha": "shall"}
_SAME_WORD = {"no": "not", "were": "was"}
# Words whose presence does not change what a sentence says. Negations, quantifiers and the past are not among them.
_FILLER = frozenset("a an the is are am be being and that this these it its please do does".split())
# What stands before one of these is another thing than what stands after it: "tea over coffee", "tabs not spaces",
# "from A to B", "more A, less B". Between two of them the order of words is free.
_PIVOTS = frozenset(
    (
        "not never without except but only nor neither or avoid like love hate dislike prefer enjoy allow deny accept "
        "reject always sometimes often usually rarely more less fewer most least first last before after over than "
        "from to into onto in on at of by for with as about against versus vs via instead rather unless until while "
        "since because so then above below under if when where who whose"
    ).split()
)
_ADDRESS = re.compile(r"[@/\\]|\w\.\w")
_ENDS = (".", "!", "?", ":")
_DENIALS = frozenset("not never neither nor without".split())
# Up to where a clause takes it back, or to its end. "Do not forget that it is so" says that it is so.
_DENIED = re.compile(r"\b(?:not(?! (?:forget|only)\b)|no|never|neither|nor|without)\b.*?(?=\bbut\b|$)", re.DOTALL)
# Endings of inflection. Other suffixes make other words: import and important, universe and university.
_INFLECTION = re.compile(r"[a-z]?(?:s|es|ies|d|ed|ied|ing|ings)|[ey]?")
_LONGEST_INFLECTION = 5
# What is longer is no word of English; a stem that is shorter would end up in any word.
_LONGEST_WORD = 64
_SHORTEST_STEM = 3


def key(text: str) -> str:
    """The form in which subjects and predicates are compared."""
    folded = _fold(text)
    return _SPACES_AND_HYPHENS.sub("_", folded).strip("_") or "_"


def subject_key(subject: str) -> str:
    plain = key(subject)
    return "user" if plain in _USER_WORDS else plain


def same_form(content: str) -> str:
    """Two contents with the same form are the same content."""
    folded = _SPACES.sub(" ", _fold(content))
    return folded.rstrip(" .!?;,…") or folded


def meaning(content: str) -> tuple[str, ...]:
    """The stemmed words with negations, numbers and names kept: equal means duplicate (F11).

    Cosine cannot decide this: opposites are closer than paraphrases.
    """
    parts: list[list[str]] = [[]]
    for word in _words(content):
        stem = _stem(word)
        if word in _PIVOTS or stem in _PIVOTS or any(c.isdigit() for c in word):
            parts += [[stem], []]
        elif word not in _FILLER:
            parts[-1].append(stem)
    return tuple(stem for part in parts for stem in sorted(set(part)))


def meaning_of(content: str) -> Callable[[str], bool]:
    """Asks other texts whether they mean the same (F11). Most fail at once, at their first word that is not in this."""
    wanted = meaning(content)
    known = frozenset(wanted)

    def is_same(other: str) -> bool:
        within = all(_stem(word) in known for word in _words(other) if word not in _FILLER)
        return within and meaning(other) == wanted

    return is_same if wanted else lambda _: False


def stems(content: str) -> frozenset[str]:
    """The words of a text, for asking how much two texts share."""
    return frozenset(_stem(word) for word in _words(content) if word not in _FILLER)


def affirmed(clause: str) -> str:
    """What a clause says to be so: "not in Paris but in Berlin" says Berlin, "I am not allergic to nuts" no nuts."""
    return _DENIED.sub(" ", _said(clause))


def named(content: str) -> frozenset[str]:
    """The words that name somebody, something or some place: addresses, paths, and capitals within a sentence."""
    tokens = content.split()
    before = [".", *tokens]  # the first word is a capital anyway
    return stems(" ".join(token for token, last in zip(tokens, before, strict=False) if _is_name(token, last)))


def _is_name(token: str, before: str) -> bool:
    return bool(_ADDRESS.search(token)) or (token[0].isupper() and not before.endswith(_ENDS))


def denies(said: frozenset[str]) -> bool:
    """Whether stems say that something is not so, or not to be done."""
    return not _DENIALS.isdisjoint(said)


class Sought:
    """What a question asks for, to be looked for in long texts: the stem of each of their words would take too long."""

    def __init__(self, wanted: frozenset[str]) -> None:
        # "hope" and "parti" are the stems of hoping and party.
        self._begins = {stem[:-1]: stem for stem in wanted if stem.endswith(("e", "i"))}
        self._begins |= {word: stem for word, stem in _SAME_WORD.items() if stem in wanted}
        self._begins |= {stem: stem for stem in wanted}
        self._openings = {beginning[:_SHORTEST_STEM] for beginning in self._begins}

    def counts(self, lines: Sequence[str]) -> list[int]:
        """How many of the stems each line has."""
        tokens = _WORD_OR_END.findall(_said("\n".join(lines)))
        possible = [token for token in set(tokens) if token[:_SHORTEST_STEM] in self._openings]
        found = {token: stem for token in possible if (stem := self._stem_in(token))}
        if not found:
            return [0] * len(lines)
        counts, there = [], set()
        for token in (*tokens, "\n"):
            if token in found:
                there.add(found[token])
            elif token == "\n":
                counts.append(len(there))
                there = set()
        return counts

    def _stem_in(self, token: str) -> str | None:
        word = token.removesuffix("'s")
        if word in self._begins:
            return self._begins[word]
        shortest = max(_SHORTEST_STEM, len(word) - _LONGEST_INFLECTION)
        for end in range(len(word) - 1, shortest - 1, -1):
            stem = self._begins.get(word[:end])
            if stem and _INFLECTION.fullmatch(word[end:]):
                return stem
        return None


def digest(secret: bytes, *parts: str) -> str:
    """A keyed digest, so that a guessed content cannot be checked without the tenant's key.

    Each part goes in with its length: no separator could be told from the same character in a text.
    """
    encoded = (part.encode("utf-8", "surrogatepass") for part in parts)
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in encoded)
    return hmac.new(secret, framed, hashlib.sha256).hexdigest()[:32]


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold().strip()


def _words(content: str) -> Iterator[str]:
    return (_plain(match[0]) for match in _WORD.finditer(_said(content)))


def _said(content: str) -> str:
    said = _fold(content).replace("’", "'")
    return _NOT.sub(_spelled_out, said) if "n't" in said or "cannot" in said else said


def _plain(token: str) -> str:
    word = token.removesuffix("'s").removesuffix("'")
    return _SAME_WORD.get(word, word)


def _spelled_out(match: re.Match[str]) -> str:
    verb = match[1] or match[2]
    return f"{_IRREGULAR.get(verb, verb)} not"


def _stem(word: str) -> str:
    if len(word) > _LONGEST_WORD or not "a" <= word[-1] <= "z":
        return word  # every ending that the stemmer knows is one of letters
    return _known_stem(word) if word.isascii() and word.isalpha() else _stem_anew(word)


def _stem_anew(word: str) -> str:
    stem = cast(str, _STEMMER.stemWord(word))
    kept = next((n for n, (a, b) in enumerate(zip(word, stem, strict=False)) if a != b), len(stem))
    return stem if _INFLECTION.fullmatch(word[kept:]) else word


# A vocabulary, not what somebody said: no codes, no numbers, no sentences.
_known_stem = lru_cache(maxsize=8192)(_stem_anew)
_STEMMER = snowballstemmer.stemmer("english")
