"""What is known of each predicate (F4)."""

from __future__ import annotations

import pytest

from butler_memory.domain.kinds import Cardinality, Permanence, Sensitivity
from butler_memory.domain.predicates import BUILTIN, Predicate, Registry
from butler_memory.domain.text import key

PLAIN = Registry({})


def own(name: str, cardinality: Cardinality = Cardinality.MANY, aliases: tuple[str, ...] = ()) -> Predicate:
    return Predicate(name, cardinality, aliases=aliases, builtin=False)


@pytest.mark.parametrize("name", ["allergy", "hobby", "friend", "owns", "likes", "works_with"])
def test_f3_the_predicates_that_the_contract_names_hold_many_values(name: str) -> None:
    assert PLAIN.find(name).cardinality is Cardinality.MANY


@pytest.mark.parametrize("name", ["name", "birthday", "home", "employer"])
def test_f3_identity_predicates_hold_one_value(name: str) -> None:
    assert PLAIN.find(name).cardinality is Cardinality.ONE


def test_f4_an_unknown_predicate_holds_one_value_and_is_standard() -> None:
    found = PLAIN.find("Shoe Size")
    assert found == Predicate("shoe_size", Cardinality.ONE, False, Permanence.STANDARD, builtin=False)


@pytest.mark.parametrize(
    ("written", "name"),
    [("Allergies", "allergy"), ("allergic to", "allergy"), ("works-at", "employer"), ("LIVES_IN", "home"),
     ("date of birth", "birthday"), ("loves", "likes"), ("speaks", "language")],
)  # fmt: skip
def test_f4_aliases_lead_to_the_canonical_predicate(written: str, name: str) -> None:
    assert PLAIN.find(written).name == name


def test_f4_an_allergy_is_permanent_and_sensitive() -> None:
    found = PLAIN.find("allergy")
    assert (found.permanence, found.sensitivity) == (Permanence.PERMANENT, Sensitivity.SENSITIVE)


def test_f4_the_builtin_names_and_aliases_are_keys_and_unambiguous() -> None:
    names = [entry.name for entry in BUILTIN]
    aliases = [alias for entry in PLAIN.all() for alias in entry.aliases]
    assert len(names + aliases) == len(set(names + aliases))
    assert all(key(word) == word for word in names + aliases)
    assert all(PLAIN.find(alias).name == entry.name for entry in PLAIN.all() for alias in entry.aliases)


def test_f4_dated_observations_are_temporal_and_many_valued() -> None:
    assert all(entry.cardinality is Cardinality.MANY for entry in BUILTIN if entry.temporal)
    assert PLAIN.find("weight").temporal


def test_f4_a_tenants_own_predicate_wins_over_the_builtin_one_and_keeps_its_aliases() -> None:
    registry = Registry({"allergy": own("allergy", Cardinality.ONE)})
    assert registry.find("allergy").cardinality is Cardinality.ONE
    assert registry.find("allergic_to").cardinality is Cardinality.ONE


def test_f4_a_tenants_own_alias_wins_over_a_builtin_name_and_a_builtin_alias() -> None:
    registry = Registry({"nickname": own("nickname", aliases=("name", "company"))})
    assert registry.find("Name").name == "nickname"
    assert registry.find("company").name == "nickname"


def test_f4_an_own_alias_of_a_builtin_name_takes_the_builtin_aliases_along() -> None:
    registry = Registry({"gig": own("gig", aliases=("employer",))})
    assert {registry.find(word).name for word in ("gig", "employer", "works_at", "company")} == {"gig"}
    assert registry.find("job").name == "job"


@pytest.mark.parametrize(
    "registry",
    [PLAIN, Registry({"gig": own("gig", aliases=("employer", "role"))}), Registry({"loves": own("loves")})],
    ids=["builtin", "aliases", "name"],
)
def test_f4_every_word_of_the_list_leads_to_its_own_entry(registry: Registry) -> None:
    for entry in registry.all():
        assert {registry.find(word) for word in (entry.name, *entry.aliases)} == {entry}


@pytest.mark.parametrize(
    ("name", "aliases", "taken"),
    [
        ("job", ("gig",), ["gig"]),
        ("job", ("hustle",), ["hustle"]),
        ("hustle", (), ["hustle"]),
        ("gig", ("hustle", "errand"), []),
        ("job", ("works_at",), []),
    ],
)
def test_f4_a_word_can_belong_to_one_own_predicate_only(name: str, aliases: tuple[str, ...], taken: list[str]) -> None:
    registry = Registry({"gig": own("gig", aliases=("hustle",))})
    assert registry.taken(own(name, aliases=aliases)) == taken


def test_f4_the_list_shows_each_predicate_once_with_the_tenants_own_over_the_builtin() -> None:
    registry = Registry({"allergy": own("allergy", Cardinality.ONE), "shoe_size": own("shoe_size")})
    listed = {entry.name: entry for entry in registry.all()}
    assert len(registry.all()) == len(BUILTIN) + 1
    assert listed["allergy"].builtin is False
    assert listed["name"].builtin is True
