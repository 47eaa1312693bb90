"""A fact as one line (F13)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from butler_memory.domain.predicates import BUILTIN
from butler_memory.domain.sentence import line_of_fact

law = settings(deadline=None, derandomize=True, database=None, max_examples=200)
visible = st.text(min_size=1, max_size=40).filter(lambda text: bool(text.strip()))
predicates = st.one_of(visible, st.sampled_from([p.name for p in BUILTIN]))


@pytest.mark.parametrize(
    ("subject", "predicate", "content", "line"),
    [
        ("user", "name", "John", "User's name is John"),
        ("me", "name", "John", "User's name is John"),
        ("I", "Full Name", "John Doe", "User's full name is John Doe"),
        ("maria", "birthday", "1 May", "Maria's birthday is 1 May"),
        ("James", "employer", "Acme", "James' employer is Acme"),
        ("user", "allergy", "peanuts", "User is allergic to peanuts"),
        ("user", "likes", "tea", "User likes tea"),
        ("user", "works-at", "Acme", "User works at Acme"),
        ("user", "language", "German", "User speaks German"),
        ("user", "moved_to", "Berlin", "User moved to Berlin"),
        ("user", "prefers_drink", "tea", "User prefers drink tea"),
        ("user", "cannot_eat", "nuts", "User cannot eat nuts"),
        ("user", "note", "water the plants", "water the plants"),
        ("my_car", "colour", "red", "My car's colour is red"),
        ("user", "favorite", "{s} {0}", "User's favorite is {s} {0}"),
    ],
)
def test_f13_a_fact_reads_as_a_sentence(subject: str, predicate: str, content: str, line: str) -> None:
    assert line_of_fact(subject, predicate, content) == line


@pytest.mark.parametrize(
    "content",
    [
        "The user works at Acme",
        "User has two cats.",
        "I am allergic to nuts",
        "I like tea in the morning",
        "I don't eat meat",
        "I'm vegan",
        "I’ve moved to Berlin",
        "She never calls on Sundays, she has no phone",
        "My son plays chess",
        "Maria is a doctor",
        "maria's sister lives in Rome",
    ],
)
def test_f13_a_content_that_is_a_sentence_stays_alone(content: str) -> None:
    assert line_of_fact("Maria", "anything", content) == content


@pytest.mark.parametrize("content", ["John", "the drink list", "the blue one", "peanuts and shellfish", "is", "his"])
def test_f13_a_content_that_is_no_sentence_gets_its_subject(content: str) -> None:
    assert line_of_fact("Maria", "choice", content) == f"Maria's choice is {content}"


@law
@given(visible, predicates, visible)
def test_f13_any_fact_gives_one_line_with_the_words_of_its_content(subject: str, predicate: str, content: str) -> None:
    line = line_of_fact(subject, predicate, content)
    assert len(line.splitlines()) == 1
    assert " ".join(content.split()) in line


@law
@given(visible, predicates, visible)
def test_f13_the_line_is_a_function_of_its_words_and_not_of_their_spacing(
    subject: str, predicate: str, content: str
) -> None:
    spaced = content.replace(" ", " \n\u2028 ")
    assert line_of_fact(subject, predicate, spaced) == line_of_fact(subject, predicate, content)
