"""What a prompt of consolidation shows a model, for models that tests make up: they know handles from nowhere else."""

from __future__ import annotations

import re
from dataclasses import dataclass

_EPISODE = re.compile(r"^<episode (E\d+) \([^)\n]*\)>\n(.*?)\n</episode>$", re.M | re.S)
_KNOWN = re.compile(r"^- ([FR]\d+): (.*) \[[^\]\n]*\]$", re.M)


@dataclass(frozen=True)
class Shown:
    """By handle: the text of each episode, the line of each known fact and rule."""

    episodes: dict[str, str]
    known: dict[str, str]


def shown(prompt: str) -> Shown:
    told = {
        handle: "\n".join(line.removeprefix("| ") for line in text.split("\n"))
        for handle, text in _EPISODE.findall(prompt)
    }
    return Shown(told, dict(_KNOWN.findall(prompt)))
