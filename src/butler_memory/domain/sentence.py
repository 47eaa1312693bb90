"""A fact as one line of English (F13): what is embedded, indexed and printed in context."""

from __future__ import annotations

import re

from butler_memory.domain.text import key, subject_key

# {s} is the subject ("User", "Maria"), {p} its possessive ("User's"), {c} the content.
_PHRASES: dict[str, str] = {
    "name": "{p} name is {c}",
    "likes": "{s} likes {c}",
    "dislikes": "{s} dislikes {c}",
    "owns": "{s} owns {c}",
    "uses": "{s} uses {c}",
    "knows": "{s} knows {c}",
    "speaks": "{s} speaks {c}",
    "language": "{s} speaks {c}",
    "prefers": "{s} prefers {c}",
    "preference": "{s} prefers {c}",
    "works_at": "{s} works at {c}",
    "works_for": "{s} works for {c}",
    "works_with": "{s} works with {c}",
    "lives_in": "{s} lives in {c}",
    "allergic_to": "{s} is allergic to {c}",
    "allergy": "{s} is allergic to {c}",
    "member_of": "{s} is a member of {c}",
    "note": "{c}",
}
_VERB_PREDICATE = re.compile(
    r"^(?:is|has|had|was|does|did|can|cannot|will|should|must|wants|likes|loves|hates|dislikes|prefers|needs|takes|"
    r"plays|studies|drives|reads|eats|drinks|plans|works|lives|owns|uses|knows|speaks|runs|keeps|goes|"
    r"moved|married|visited|bought|sold|started|stopped|switched|learned|enjoys|avoids|believes|thinks|supports)(?:_|$)"
)
_OPENERS = frozenset("the a an my his her their our this that these those i he she they we it there user".split())
_FINITE_VERBS = frozenset(
    (
        "am is are was were has have had does do did will would can could should must may might likes loves "
        "hates prefers wants needs works lives owns uses takes goes plays speaks drives reads eats drinks "
        "plans moved started stopped switched bought sold met got enjoys avoids believes thinks studies runs "
        "keeps asked said told made went became"
    ).split()
)
# After one of these the plain form is a verb ("I like tea"); after an article it may be a noun ("the drink list").
_PERSONS = frozenset("i we they you he she".split())
_PLAIN_FORMS = frozenset(
    (
        "like love hate dislike prefer want need work live own use take go play speak drive read eat drink plan "
        "enjoy avoid believe think study run keep know feel always never often usually sometimes rarely"
    ).split()
)
_CONTRACTION = re.compile(r"^(i|you|he|she|it|we|they|there|that)'(?:m|re|s|ve|ll|d)$")


def line_of_fact(subject: str, predicate: str, content: str) -> str:
    """'User's name is John', not 'John'; the content alone where it is a sentence already."""
    content = one_line(content)
    name = _spoken_subject(subject)
    if _is_sentence(content, subject):
        return content
    plain = key(predicate)
    owner = f"{name}'" if name.endswith("s") else f"{name}'s"
    phrase = _PHRASES.get(plain)
    if phrase:
        return phrase.format(s=name, p=owner, c=content)
    words = plain.replace("_", " ")
    if _VERB_PREDICATE.match(plain):
        return f"{name} {words} {content}"
    return f"{owner} {words} is {content}"


def one_line(text: str) -> str:
    return " ".join(text.split())


def _spoken_subject(subject: str) -> str:
    if subject_key(subject) == "user":
        return "User"
    spoken = one_line(subject.replace("_", " "))
    return spoken[:1].upper() + spoken[1:]


def _is_sentence(content: str, subject: str) -> bool:
    """Three words or more, an opening that can be a subject, and a finite verb near it."""
    words = [w.strip(".,;:!?\"'()") for w in content.casefold().replace("’", "'").split()]
    if len(words) > 1 and _CONTRACTION.match(words[0]):
        return True
    if len(words) < 3:
        return False
    first, second = words[:2]
    if first in _PERSONS and second in _PLAIN_FORMS:
        return True
    opens = first in _OPENERS or first.removesuffix("'s") in key(subject).split("_")
    return opens and any(w in _FINITE_VERBS or w.endswith("n't") for w in words[1:5])
