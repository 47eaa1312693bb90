"""What is known of each predicate: how many values it holds, how long they last, how careful to be (F4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from butler_memory.domain.kinds import Cardinality, Permanence, Sensitivity
from butler_memory.domain.text import key


@dataclass(frozen=True)
class Predicate:
    name: str
    cardinality: Cardinality = Cardinality.ONE
    temporal: bool = False
    permanence: Permanence = Permanence.STANDARD
    sensitivity: Sensitivity = Sensitivity.NORMAL
    aliases: tuple[str, ...] = ()
    builtin: bool = True


def _one(permanence: Permanence, *names: str, sensitivity: Sensitivity = Sensitivity.NORMAL) -> list[Predicate]:
    return [Predicate(n, Cardinality.ONE, False, permanence, sensitivity) for n in names]


def _many(permanence: Permanence, *names: str, sensitivity: Sensitivity = Sensitivity.NORMAL) -> list[Predicate]:
    return [Predicate(n, Cardinality.MANY, False, permanence, sensitivity) for n in names]


def _dated(permanence: Permanence, *names: str, sensitivity: Sensitivity = Sensitivity.NORMAL) -> list[Predicate]:
    return [Predicate(n, Cardinality.MANY, True, permanence, sensitivity) for n in names]


_P, _S = Permanence, Sensitivity

BUILTIN: tuple[Predicate, ...] = (
    *_one(_P.PERMANENT, "name", "full_name", "birthday", "birthplace", "gender", "native_language"),
    *_one(_P.STABLE, "home", "address", "employer", "job", "timezone", "spouse", "partner", "email", "phone"),
    *_one(_P.STABLE, "preferred_name", "pronouns", "nationality", "religion", "marital_status"),
    *_one(_P.PERMANENT, "blood_type", sensitivity=_S.SENSITIVE),
    *_one(_P.STABLE, "national_id", "passport_number", "bank_account", sensitivity=_S.HIGH),
    *_one(_P.VOLATILE, "mood", "current_location", "current_task"),
    *_many(_P.PERMANENT, "allergy", "medical_condition", sensitivity=_S.SENSITIVE),
    *_many(_P.STABLE, "dietary_restriction", "medication", sensitivity=_S.SENSITIVE),
    *_many(_P.PERMANENT, "child", "parent", "sibling", "relative", "education", "anniversary"),
    *_many(_P.STABLE, "friend", "colleague", "pet", "language", "skill", "likes", "dislikes", "preference"),
    *_many(_P.STABLE, "favorite", "habit", "works_with", "member_of", "certification", "value"),
    *_many(_P.STANDARD, "hobby", "interest", "current_interest", "owns", "project", "goal", "opinion", "uses"),
    *_many(_P.STANDARD, "note", "subscription", "knows"),
    *_many(_P.VOLATILE, "plan", "task", "symptom"),
    *_dated(_P.STANDARD, "weight", "measurement", "blood_pressure", "expense", "purchase"),
    *_dated(_P.VOLATILE, "appointment", "trip", "visit"),
    *_dated(_P.EPHEMERAL, "recent_meal", "recent_event", "observation"),
)

_ALIASES: dict[str, str] = {
    "allergies": "allergy", "allergic_to": "allergy", "has_allergy": "allergy",
    "hobbies": "hobby", "interests": "interest", "friends": "friend", "friend_of": "friend",
    "pets": "pet", "has_pet": "pet", "languages": "language", "speaks": "language", "skills": "skill",
    "like": "likes", "loves": "likes", "enjoys": "likes", "dislike": "dislikes", "hates": "dislikes",
    "preferences": "preference", "prefers": "preference", "own": "owns", "possession": "owns",
    "works_at": "employer", "works_for": "employer", "company": "employer",
    "occupation": "job", "profession": "job", "job_title": "job", "role": "job",
    "lives_in": "home", "residence": "home", "city": "home", "hometown": "birthplace",
    "birth_date": "birthday", "date_of_birth": "birthday", "born": "birthday",
    "children": "child", "kids": "child", "son": "child", "daughter": "child",
    "siblings": "sibling", "brother": "sibling", "sister": "sibling", "parents": "parent",
    "mother": "parent", "father": "parent", "wife": "spouse", "husband": "spouse",
    "conditions": "medical_condition", "condition": "medical_condition", "diagnosis": "medical_condition",
    "medications": "medication", "takes": "medication", "goals": "goal", "plans": "plan",
    "projects": "project", "notes": "note", "time_zone": "timezone", "diet": "dietary_restriction",
}  # fmt: skip


@dataclass(frozen=True)
class Registry:
    """Built-in predicates, and a tenant's own over them."""

    own: Mapping[str, Predicate]
    many_valued: bool = True

    def find(self, predicate: str) -> Predicate:
        """The entry for a predicate as an agent wrote it; an unknown one holds one value."""
        name = key(predicate)
        canonical = _ALIASES.get(name, name)
        return self._own(name) or self._own(canonical) or self._builtin(canonical) or Predicate(name, builtin=False)

    def all(self) -> list[Predicate]:
        """Each entry that its own name still leads to: one of the tenant's may have taken it as an alias."""
        entries = {name: self.find(name) for name in sorted({*_BY_NAME, *self.own})}
        return [entry for name, entry in entries.items() if entry.name == name]

    def taken(self, entry: Predicate) -> list[str]:
        """Which of the entry's words lead to another of the tenant's own predicates already."""
        others = [other for name, other in self.own.items() if name != entry.name]
        spoken_for = {word for other in others for word in (other.name, *other.aliases)}
        return [word for word in (entry.name, *entry.aliases) if word in spoken_for]

    def _own(self, name: str) -> Predicate | None:
        return self.own.get(name) or next((p for p in self.own.values() if name in p.aliases), None)

    def _builtin(self, name: str) -> Predicate | None:
        """Without those of its aliases that one of the tenant's own predicates has taken."""
        entry = _BY_NAME.get(name)
        if entry is None or not self.own:
            return entry
        return replace(entry, aliases=tuple(alias for alias in entry.aliases if not self._own(alias)))


def _with_aliases(entry: Predicate) -> Predicate:
    aliases = tuple(sorted(a for a, name in _ALIASES.items() if name == entry.name))
    return Predicate(entry.name, entry.cardinality, entry.temporal, entry.permanence, entry.sensitivity, aliases)


_BY_NAME: dict[str, Predicate] = {p.name: _with_aliases(p) for p in BUILTIN}


def other_words(predicate_key: str) -> tuple[str, ...]:
    """What else a built-in predicate is called, for the text index."""
    known = _BY_NAME.get(predicate_key)
    return known.aliases if known else ()
