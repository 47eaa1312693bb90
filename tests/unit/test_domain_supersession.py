"""What a newly stated fact does to those already known on its key (F3, F5, F9, F11)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from butler_memory.domain.clock import new_id
from butler_memory.domain.decay import DECAY_PER_DAY
from butler_memory.domain.kinds import Cardinality, ContentStatus, Permanence, SourceKind, Validity
from butler_memory.domain.predicates import Predicate
from butler_memory.domain.records import Fact
from butler_memory.domain.requests import StoreFact, parse
from butler_memory.domain.supersession import (
    LONGEST_IN_OTHER_WORDS,
    SOURCE_RANK,
    ArriveLate,
    Create,
    Keep,
    Replace,
    Strengthen,
    decide,
    said_before,
    scope_of,
    slot_of,
)
from butler_memory.errors import InvalidInput
from pace import within

law = settings(deadline=None, derandomize=True, database=None)
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECRET = b"tenant key"
ONE = Predicate("home", Cardinality.ONE)
MANY = Predicate("hobby", Cardinality.MANY)
DATED = Predicate("weight", Cardinality.MANY, temporal=True)
NOBODY: frozenset[UUID] = frozenset()
kinds = st.sampled_from(list(SourceKind))
user_kinds = st.sampled_from([SourceKind.USER_STATED, SourceKind.CORRECTED])
contents = st.sampled_from(["Paris", "tea over coffee", "82.5 kg", "It's raining!", "नमस्ते"])


def slot(
    predicate: Predicate,
    content: str,
    *,
    valid_from: datetime | None = None,
    now: datetime = NOW,
    secret: bytes = SECRET,
    many_valued: bool = True,
) -> str:
    return slot_of(predicate, content, valid_from=valid_from, now=now, secret=secret, many_valued=many_valued)


def known(content: str = "Paris", predicate: Predicate = ONE, **given: Any) -> Fact:
    """A live fact as it lies in the table."""
    permanence = given.get("permanence", Permanence.STABLE)
    fact = Fact(
        tenant_id="home", id=new_id(NOW), version=1, subject="user", predicate=predicate.name, subject_key="user",
        predicate_key=predicate.name, slot=slot(predicate, content), content=content,
        content_status=ContentStatus.PLAIN, importance=8.0, confidence=0.6, decay_rate=DECAY_PER_DAY[permanence],
        permanence=permanence, validity=Validity.ACTIVE, scope="global", source_kind=SourceKind.AGENT_INFERRED,
        source_butler="health", source_episode_id=None, source_session_id=None, request_id=None, supersedes_id=None,
        superseded_at=None, valid_from=None, valid_to=None, fades_at=None, expires_at_conf=None, created_at=NOW,
        last_confirmed_at=NOW, tags=["old"], metadata={},
    )  # fmt: skip
    return replace(fact, **given)


def says(content: str = "Paris", **given: Any) -> StoreFact:
    return parse(StoreFact, {"subject": "me", "predicate": "home", "content": content, **given})


# --- slots (F3) ---


@law
@given(contents, contents)
def test_f3_a_single_valued_key_has_one_slot(one: str, other: str) -> None:
    assert slot(ONE, one) == slot(ONE, other) == ""


@law
@given(contents, contents)
def test_f3_a_many_valued_key_has_a_slot_for_each_content(one: str, other: str) -> None:
    assert (slot(MANY, one) == slot(MANY, other)) == (one == other)
    assert slot(MANY, f"  {one.upper()}. ") == slot(MANY, one)


@law
@given(st.sampled_from([ONE, MANY, DATED]), contents)
def test_f3_many_valued_false_gives_one_slot_to_every_key(predicate: Predicate, content: str) -> None:
    assert slot(predicate, content, many_valued=False) == ""


def test_f3_a_slot_is_a_keyed_digest_that_does_not_show_the_content() -> None:
    assert "hiking" not in slot(MANY, "hiking")
    assert slot(MANY, "hiking", secret=b"another tenant") != slot(MANY, "hiking")


def test_f3_dated_observations_are_told_apart_by_moment_and_content() -> None:
    later = NOW + timedelta(seconds=1)
    assert slot(DATED, "82 kg", valid_from=NOW) != slot(DATED, "82 kg", valid_from=later)
    assert slot(DATED, "82 kg", valid_from=NOW) != slot(DATED, "83 kg", valid_from=NOW)


def test_f3_the_same_moment_written_in_another_zone_is_the_same_slot() -> None:
    tokyo = NOW.astimezone(timezone(timedelta(hours=9)))
    assert slot(DATED, "82 kg", valid_from=tokyo) == slot(DATED, "82 kg", valid_from=NOW)
    assert slot(DATED, "82 kg", now=tokyo.replace(hour=3)) == slot(DATED, "82 kg", now=NOW - timedelta(hours=18))


def test_f3_undated_observations_of_one_day_are_one_and_of_two_days_are_two() -> None:
    assert slot(DATED, "82 kg", now=NOW + timedelta(hours=3)) == slot(DATED, "82 kg", now=NOW)
    assert slot(DATED, "82 kg", now=NOW + timedelta(days=1)) != slot(DATED, "82 kg", now=NOW)


# --- what to do (F5) ---


def test_f5_a_new_key_is_created() -> None:
    assert decide(says(), "", [], said_this_session=NOBODY, now=NOW) == Create()


def test_f5_another_value_of_a_many_valued_key_joins_the_others() -> None:
    chess = known("chess", MANY)
    assert decide(says("hiking"), slot(MANY, "hiking"), [chess], said_this_session=NOBODY, now=NOW) == Create()


def test_f5_new_content_replaces_and_inherits_what_the_caller_did_not_give() -> None:
    old = known("Paris", permanence=Permanence.PERMANENT)
    assert decide(says("Rome"), "", [old], said_this_session=NOBODY, now=NOW) == Replace(
        old, {"permanence": Permanence.PERMANENT, "decay_rate": 0.0, "importance": 8.0, "tags": ["old"]}
    )


def test_f5_what_the_caller_gives_is_not_inherited_even_where_it_is_the_default() -> None:
    request = says("Rome", permanence="standard", importance=5, tags=[])
    assert decide(request, "", [known()], said_this_session=NOBODY, now=NOW) == Replace(known_like(request), {})


def known_like(_: StoreFact) -> Any:
    class Anything:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Fact)

        __hash__ = None  # type: ignore[assignment]

    return Anything()


@law
@given(kinds, kinds, st.booleans())
def test_f5_a_direct_call_with_new_content_always_supersedes(old: SourceKind, new: SourceKind, said: bool) -> None:
    fact = known(source_kind=old)
    decision = decide(
        says("Rome", source_kind=new), "", [fact], said_this_session={fact.id} if said else NOBODY, now=NOW
    )
    assert isinstance(decision, Replace)
    assert decision.existing is fact


def test_f2_older_evidence_arrives_late_and_retires_nothing() -> None:
    newer = known(valid_from=NOW)
    older = says("Rome", valid_from="2019-01-01T00:00:00Z")
    assert decide(older, "", [newer], said_this_session=NOBODY, now=NOW) == ArriveLate(newer)


def test_f2_old_news_told_twice_is_one_piece_of_history_and_of_another_time_is_another() -> None:
    before = replace(known("Paris"), validity=Validity.SUPERSEDED)
    assert said_before(says("paris."), [before]) == before
    assert said_before(says("Rome"), [before]) is None
    assert said_before(says("Paris", valid_from="2020-01-01T00:00:00Z"), [before]) is None


def test_f2_a_value_that_is_over_does_not_retire_the_one_that_holds() -> None:
    ended = "2018-01-01T00:00:00Z"
    for holder in (known(), known(valid_from=NOW - timedelta(days=9_000)), known(valid_to=NOW)):
        late = decide(says("Rome", valid_to=ended), "", [holder], said_this_session=NOBODY, now=NOW)
        assert late == ArriveLate(holder)
    for request in (says("Rome", valid_to=NOW + timedelta(days=1)), says("Rome", valid_from=NOW, valid_to=NOW)):
        decision = decide(request, "", [known()], said_this_session=NOBODY, now=NOW)
        assert isinstance(decision, Replace), "what still holds, or ends just now, is news"
    earlier = known(valid_to=datetime(2010, 1, 1, tzinfo=UTC))
    decision = decide(says("Rome", valid_to=ended), "", [earlier], said_this_session=NOBODY, now=NOW)
    assert isinstance(decision, Replace), "it ended, but later than what was known"


def test_f2_evidence_of_the_same_or_a_later_time_replaces() -> None:
    newer = known(valid_from=NOW)
    for moment in (NOW, NOW + timedelta(days=1)):
        decision = decide(says("Rome", valid_from=moment), "", [newer], said_this_session=NOBODY, now=NOW)
        assert isinstance(decision, Replace)


# --- the same again (F5, F9) ---


@law
@given(contents, user_kinds, kinds)
def test_f9_the_same_content_by_the_user_in_another_session_confirms(
    content: str, by_user: SourceKind, before: SourceKind
) -> None:
    fact = known(content, source_kind=before)
    decision = decide(says(f" {content} .", source_kind=by_user), "", [fact], said_this_session=NOBODY, now=NOW)
    assert isinstance(decision, Strengthen)
    assert decision.existing is fact
    assert decision.confirms


@law
@given(contents, user_kinds)
def test_f9_the_user_repeating_it_in_the_same_session_changes_nothing(content: str, by_user: SourceKind) -> None:
    fact = known(content, source_kind=by_user)
    again = says(content, source_kind=by_user)
    assert decide(again, "", [fact], said_this_session={fact.id}, now=NOW) == Keep(fact)


@law
@given(contents, kinds, st.booleans())
def test_f9_what_an_agent_infers_again_never_confirms(content: str, before: SourceKind, said: bool) -> None:
    fact = known(content, source_kind=before)
    again = says(content, source_kind="agent_inferred")
    assert decide(again, "", [fact], said_this_session={fact.id} if said else NOBODY, now=NOW) == Keep(fact)


def test_f9_an_import_of_what_was_inferred_improves_its_source_and_confirms_nothing() -> None:
    decision = decide(says(source_kind="imported"), "", [known()], said_this_session=NOBODY, now=NOW)
    assert isinstance(decision, Strengthen)
    assert not decision.confirms
    assert decision.changes == {"source_kind": SourceKind.IMPORTED, "confidence": 1.0}


def test_f9_the_user_saying_what_was_only_inferred_confirms_even_in_the_same_session() -> None:
    fact = known()
    decision = decide(says(source_kind="user_stated"), "", [fact], said_this_session={fact.id}, now=NOW)
    assert isinstance(decision, Strengthen)
    assert decision.confirms


@law
@given(kinds, kinds, st.floats(0.01, 1.0), st.floats(0.01, 1.0))
def test_f9_confidence_rises_only_when_the_source_improves_and_never_falls(
    before: SourceKind, after: SourceKind, stored: float, stated: float
) -> None:
    fact = known(source_kind=before, confidence=stored)
    decision = decide(says(source_kind=after, confidence=stated), "", [fact], said_this_session=NOBODY, now=NOW)
    changes = decision.changes if isinstance(decision, Strengthen) else {}
    if SOURCE_RANK[after] > SOURCE_RANK[before]:
        assert changes["confidence"] == max(stored, stated)
        assert changes["source_kind"] is after
    else:
        assert "confidence" not in changes
        assert "source_kind" not in changes


def test_f8_a_direct_statement_by_the_user_ranks_above_an_inference() -> None:
    order = sorted(SourceKind, key=lambda kind: SOURCE_RANK[kind])
    assert [kind.value for kind in order] == ["agent_inferred", "imported", "user_stated", "corrected"]


def test_f5_attributes_given_explicitly_that_differ_are_a_revision() -> None:
    again = says(permanence="volatile", importance=3, tags=["new"], valid_to="2027-01-01T00:00:00Z")
    decision = decide(again, "", [known()], said_this_session=NOBODY, now=NOW)
    assert isinstance(decision, Strengthen)
    assert not decision.confirms
    assert decision.changes == {
        "permanence": Permanence.VOLATILE, "decay_rate": 0.03, "importance": 3.0, "tags": ["new"],
        "valid_to": datetime(2027, 1, 1, tzinfo=UTC),
    }  # fmt: skip


def test_f5_attributes_given_as_they_are_already_are_no_revision() -> None:
    again = says(permanence="stable", importance=8, tags=["old"])
    fact = known()
    assert decide(again, "", [fact], said_this_session=NOBODY, now=NOW) == Keep(fact)


def test_f5_a_revision_may_not_end_a_fact_before_it_begins() -> None:
    fact = known(valid_from=NOW)
    with pytest.raises(InvalidInput) as refused:
        decide(says(valid_to="2020-01-01T00:00:00Z"), "", [fact], said_this_session=NOBODY, now=NOW)
    assert refused.value.field == "valid_to"


# --- near-duplicates (F11) ---


@pytest.mark.parametrize(
    ("stored", "said"), [("tea and coffee", "coffee and tea"), ("hiking trips", "The hiking trip")]
)
def test_f11_a_many_valued_fact_in_other_words_is_the_same_one(stored: str, said: str) -> None:
    fact = known(stored, MANY)
    assert decide(says(said), slot(MANY, said), [fact], said_this_session=NOBODY, now=NOW) == Keep(fact)


@pytest.mark.parametrize(
    ("stored", "said"), [("tea over coffee", "coffee over tea"), ("likes rain", "doesn't like rain"), ("5 km", "10 km")]
)
def test_f11_a_contrary_of_a_many_valued_fact_joins_and_never_merges(stored: str, said: str) -> None:
    fact = known(stored, MANY)
    assert decide(says(said), slot(MANY, said), [fact], said_this_session=NOBODY, now=NOW) == Create()


def test_f11_a_single_valued_fact_in_other_words_is_new_content() -> None:
    fact = known("tea and coffee")
    decision = decide(says("coffee and tea"), "", [fact], said_this_session=NOBODY, now=NOW)
    assert isinstance(decision, Replace)


def test_f3_a_dated_observation_is_never_merged_into_one_of_another_time() -> None:
    yesterday = NOW - timedelta(days=1)
    before = known("82 kg", DATED, valid_from=yesterday, slot=slot(DATED, "82 kg", valid_from=yesterday))
    dated = says("82 kg", valid_from=NOW)
    undated = says("kg 82")
    assert decide(dated, slot(DATED, "82 kg", valid_from=NOW), [before], said_this_session=NOBODY, now=NOW) == Create()
    assert decide(undated, slot(DATED, "kg 82"), [before], said_this_session=NOBODY, now=NOW) == Create()


def test_f11_values_without_words_are_only_the_same_as_themselves() -> None:
    fact = known("This is it", MANY)
    assert decide(says("that"), slot(MANY, "that"), [fact], said_this_session=NOBODY, now=NOW) == Create()
    again = decide(says("this is it!"), slot(MANY, "this is it!"), [fact], said_this_session=NOBODY, now=NOW)
    assert again == Keep(fact)


def test_f11_a_long_fact_is_a_duplicate_of_the_same_content_only() -> None:
    one, other = "tea was served and coffee too " * 70, "coffee was served and tea too " * 70
    assert len(one) > LONGEST_IN_OTHER_WORDS
    fact = known(one, MANY)
    for said, decision in (
        (f" {one.upper()}!", Keep(fact)),
        (other, Create()),
        ("coffee tea served was too", Create()),
    ):
        assert decide(says(said), slot(MANY, said), [fact], said_this_session=NOBODY, now=NOW) == decision
    short = known("tea was served", MANY)
    assert decide(says(other), slot(MANY, other), [short], said_this_session=NOBODY, now=NOW) == Create()


def test_f11_the_values_on_a_key_are_compared_at_once_however_many_and_long_they_are() -> None:
    """Of processor time, which others on the machine do not use up."""
    on_key = [known(f"{n} " + " ".join(f"w{n}x{m}s" for m in range(3_000)), MANY) for n in range(60)]
    on_key += [known(f"likes the place number {n} of the mountains", MANY) for n in range(1_000)]
    with within(0.3):
        for said in (f"{on_key[0].content} more", "likes the lake"):
            assert decide(says(said), slot(MANY, said), on_key, said_this_session=NOBODY, now=NOW) == Create()


# --- where it belongs when no scope is given (F5) ---

SCOPES = ("project:atlas", "health", "global")


def test_f5_of_many_values_the_nearest_scope_that_has_this_one_is_meant() -> None:
    live = [known("chess", MANY, scope="health"), known("playing golf", MANY), known("chess", MANY)]
    for content, scope in [("chess", "health"), ("Golf playing", "global"), ("tennis", None)]:
        assert scope_of(says(content), slot(MANY, content), live, SCOPES) == scope
    assert scope_of(says("chess"), slot(MANY, "chess"), live[1:], SCOPES) == "global"


def test_f5_of_one_value_the_nearest_scope_that_has_any_is_meant() -> None:
    live = [known("Paris"), known("London", scope="project:atlas")]
    assert scope_of(says("Paris"), "", live, SCOPES) == "project:atlas"
    assert scope_of(says("Rome"), "", live[:1], SCOPES) == "global"
    assert scope_of(says("Rome"), "", [], SCOPES) is None


@law
@given(st.lists(contents, unique=True, max_size=5), contents)
def test_f5_a_decision_names_only_facts_that_it_was_given(stored: list[str], said: str) -> None:
    on_key = [known(content, MANY) for content in stored]
    decision = decide(
        says(said, source_kind="user_stated"), slot(MANY, said), on_key, said_this_session=NOBODY, now=NOW
    )
    if said in stored:
        assert isinstance(decision, Strengthen)
        assert decision.existing is on_key[stored.index(said)]
    else:
        assert decision == Create()
