"""When are two texts the same? (F10, F11)"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from butler_memory.domain import text as module
from butler_memory.domain.text import Sought, digest, key, meaning, meaning_of, named, same_form, stems, subject_key

law = settings(deadline=None, derandomize=True, database=None, max_examples=200)
texts = st.text(max_size=60)
words = st.sampled_from("tea coffee Anna peanut hiking garden report seven lamp river".split())


@law
@given(texts)
def test_f10_a_key_is_its_own_key_and_never_empty(text: str) -> None:
    once = key(text)
    assert once
    assert key(once) == once
    assert subject_key(subject_key(text)) == subject_key(text)


@law
@given(texts)
def test_f10_a_key_holds_no_space_hyphen_or_upper_case(text: str) -> None:
    made = key(text)
    assert not any(c.isspace() or c == "-" for c in made)
    assert made == made.casefold()


@law
@given(st.lists(words, min_size=1, max_size=4), st.sampled_from([" ", "  ", "-", " - ", "\t", "_", "‑", "–", "\u00a0"]))
def test_f10_spaces_hyphens_and_case_do_not_tell_keys_apart(parts: list[str], glue: str) -> None:
    assert key(f" {glue.join(parts).upper()} ") == key("_".join(parts))


@pytest.mark.parametrize(
    "word", ["me", "I", "my", "myself", "owner", "the user", "The User", "user", " ME ", "the-user"]
)
def test_f10_the_words_for_the_user_are_one_subject(word: str) -> None:
    assert subject_key(word) == "user"


@pytest.mark.parametrize("word", ["mine", "users", "Ian", "my mother", "owner of the shop", "the"])
def test_f10_other_subjects_are_not_the_user(word: str) -> None:
    assert subject_key(word) != "user"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ｎａｍｅ", "name"),
        ("ﬁle", "file"),
        ("e\u0301cole", "école"),
        ("STRASSE", "straße"),
        ("①", "1"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
    ],
)
def test_f10_keys_and_contents_are_compared_in_nfkc_and_casefolded(one: str, other: str) -> None:
    assert key(one) == key(other)
    assert same_form(one) == same_form(other)


def test_f10_keys_of_punctuation_alone_are_one_line() -> None:
    assert key("-\n-") == key("---") == "_"


@law
@given(texts)
def test_f10_the_form_of_a_content_is_its_own_form(text: str) -> None:
    assert same_form(same_form(text)) == same_form(text)


@law
@given(st.lists(words, min_size=1, max_size=6), st.sampled_from(["", ".", "!", "?!", " .", "...", ";", "…", ","]))
def test_f10_case_spacing_and_trailing_punctuation_do_not_change_a_content(parts: list[str], end: str) -> None:
    assert same_form("  " + " \n ".join(parts).upper() + end) == same_form(" ".join(parts))


@pytest.mark.parametrize(
    ("one", "other"),
    [("!!!", "???"), ("John", "Jon"), ("a b", "ab"), ("a-b", "a b"), ("3.5", "35"), (".5", "5"), ("", "!")],
)
def test_f10_contents_that_differ_inside_differ(one: str, other: str) -> None:
    assert same_form(one) != same_form(other)


OPPOSITES = """
always confirm before deleting | never confirm before deleting
always confirm | never confirm
confirm before deleting | confirm after deleting
use emojis | don't use emojis
use emojis | do not use emojis
use emojis | never use emojis
reply in English | reply in German
likes cilantro | dislikes cilantro
likes cilantro | does not like cilantro
can swim | can't swim
can swim | cannot swim
is allergic to peanuts | isn't allergic to peanuts
has paid the rent | hasn't paid the rent
has children | has no children
coffee with sugar | coffee without sugar
turn the lights on | turn the lights off
call before 9 | call after 9
send the report to Anna | send the report from Anna
use tabs not spaces | use spaces not tabs
use tabs instead of spaces | use spaces instead of tabs
replace tabs with spaces | replace spaces with tabs
convert PDF to Word | convert Word to PDF
more tea, less coffee | more coffee, less tea
likes tea, hates coffee | likes coffee, hates tea
is happy with the job | is unhappy with the job
is a smoker | is a non-smoker
is a smoker | was a smoker
tea and coffee | tea or coffee
approve all requests | approve no requests
everyone except Anna | Anna except everyone
only reply to Anna | reply only if Anna asks
vote for the plan | vote against the plan
paid by Anna | paid for Anna
👍 for remote work | 👎 for remote work
send it if it rains | send it unless it rains
"""

SAME_MEANING = """
likes tea and coffee | likes coffee and tea
Likes tea and coffee. | LIKES COFFEE AND TEA!
allergic to peanuts and shellfish | allergic to shellfish and peanuts
allergic to peanuts | is allergic to peanuts
allergic to peanuts | is allergic to the peanut
hiking | Hiking.
likes hiking | likes hike
confirm the deletes | Please confirm deletes
confirm deletes | confirming deletes
always confirm deletes | Always confirm the deletes.
never use emojis | Never use the emoji
don't use emojis | do not use emojis
don’t use emojis | don't use emojis
doesn't eat meat | does not eat meat
can't swim | cannot swim
can't swim | can not swim
won't travel in May | will not travel in May
no sugar | not sugar
gluten-free bread | gluten free bread
bread, gluten free | gluten free bread
Anna's birthday | birthday Anna
a red car | the red car
red big car | big red car
studies history and law | study law and history
summarise emails daily | daily summarise emails
takes 5 mg | takes 5mg
the meeting is on Monday | meeting on Monday
two cats and a dog | a dog and two cats
“quoted” words | "quoted" words
(in brackets) | in brackets
prefers tea over coffee | Prefers the tea over the coffee
ﬁnd files | find files
owns a house in Paris | Owns house in Paris
the report is weekly | weekly report
"""

DIFFERENT_DETAILS = """
prefers tea over coffee | prefers coffee over tea
weighs 3.5 kg | weighs 5.3 kg
born 2024-01-02 | born 2024-02-01
meets at 10:30 | meets at 30:10
it is -5 degrees | it is 5 degrees
costs $5 | costs €5
costs 5% | costs 5
takes 5 mg | takes 50 mg
buy 1 egg and 2 milks | buy 2 eggs and 1 milk
3 dogs and cats | dogs and 3 cats
version v1.2 | version v2.1
codes in C | codes in C++
codes in C | codes in C#
Anna before Bob | Bob before Anna
from Paris to Rome | from Rome to Paris
friend of Anna | friend of Anne
reads international news | reads internal news
mark important mail | mark import mail
studies the universe | studies the university
ไม่ดี | ไมดี
हिन्दी की | हिन्दी का
"""


def pairs(table: str) -> list[tuple[str, str]]:
    rows = [line.split(" | ") for line in table.strip().splitlines()]
    return [(one, other) for one, other in rows]


@pytest.mark.parametrize(("one", "other"), pairs(OPPOSITES))
def test_f11_opposites_have_different_meanings(one: str, other: str) -> None:
    assert meaning(one) != meaning(other)


@pytest.mark.parametrize(("one", "other"), pairs(SAME_MEANING))
def test_f11_word_order_articles_inflection_and_case_do_not_change_the_meaning(one: str, other: str) -> None:
    assert meaning(one) == meaning(other)


@pytest.mark.parametrize(("one", "other"), pairs(DIFFERENT_DETAILS))
def test_f11_numbers_names_and_order_are_part_of_the_meaning(one: str, other: str) -> None:
    assert meaning(one) != meaning(other)


@law
@given(st.lists(words, min_size=1, max_size=6).flatmap(lambda parts: st.tuples(st.just(parts), st.permutations(parts))))
def test_f11_plain_words_mean_the_same_in_any_order(orders: tuple[list[str], list[str]]) -> None:
    given_order, other_order = orders
    assert meaning(" ".join(given_order)) == meaning("The " + ", ".join(other_order).upper() + ".")


@law
@given(st.lists(words, min_size=1, max_size=5), st.sampled_from(["not", "never", "without", "no", "don't", "7", "Zoe"]))
def test_f11_an_added_negation_number_or_name_changes_the_meaning(parts: list[str], added: str) -> None:
    assert meaning(" ".join(parts)) != meaning(f"{added} {' '.join(parts)}")


@law
@given(texts)
def test_f11_the_same_content_has_the_same_meaning(text: str) -> None:
    assert meaning(f"  {text.strip()} ") == meaning(text)


def test_f11_meaning_is_linear_in_the_length_of_the_text() -> None:
    """A quadratic pattern would take minutes here."""
    assert meaning("a" * 32_000)
    assert meaning("1" * 32_000)
    assert meaning("don't " * 5_000)
    assert meaning("1," * 16_000)


@pytest.mark.parametrize(("one", "other"), [*pairs(OPPOSITES), *pairs(SAME_MEANING), *pairs(DIFFERENT_DETAILS)])
def test_f11_asking_a_text_for_its_meaning_is_comparing_meanings(one: str, other: str) -> None:
    assert meaning_of(one)(other) == (meaning(one) == meaning(other))
    assert meaning_of(other)(one) == (meaning(one) == meaning(other))


@law
@given(texts, texts)
def test_f11_a_text_without_words_means_the_same_as_no_other(one: str, other: str) -> None:
    assert meaning_of(one)(other) == (meaning(one) == meaning(other) != ())


def test_f11_words_that_may_be_codes_or_secrets_are_kept_in_no_cache() -> None:
    module._known_stem.cache_clear()
    meaning("hunter2s pass-4711 gläserns " + "z" * 100 + "s")
    assert module._known_stem.cache_info().currsize == 1, "pass"


# --- what a question asks for, in long texts (C6) ---


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("dentist", "The DENTISTS, they"),
        ("the parties", "a party"),
        ("a party", "two parties."),
        ("hoping", "hope hoped"),
        ("we hope", "hoping"),
        ("running", "he runs"),
        ("Anna", "Anna's birthday"),
        ("were", "was"),
        ("was", "were"),
        ("at 10:30", "10:30."),
        ("C++", "in C++!"),
        ("don't", "not"),
        ("müde", "MU\u0308DE"),
        ("go", "go"),
    ],
)
def test_c6_what_is_asked_for_is_found_as_its_stem_would_be(asked: str, said: str) -> None:
    assert stems(asked) & stems(said)
    assert Sought(stems(asked)).counts([said, "zzz", said]) == [1, 0, 1]


@pytest.mark.parametrize(
    ("asked", "said"), [("import", "important"), ("a", "art"), ("cat", "catalogue"), ("tea", "team")]
)
def test_c6_other_words_are_not_found(asked: str, said: str) -> None:
    assert Sought(stems(asked)).counts([said]) == [0]


@law
@given(st.lists(st.lists(words, min_size=1, max_size=6), min_size=1, max_size=6), st.lists(words, max_size=4))
def test_c6_each_line_is_counted_by_the_stems_that_it_shares(lines: list[list[str]], asked: list[str]) -> None:
    wanted = stems(" ".join(asked))
    said = [" ".join(line) for line in lines]
    assert Sought(wanted).counts(said) == [len(stems(line) & wanted) for line in said]


@law
@given(st.binary(min_size=1, max_size=32), texts, texts)
def test_f3_a_digest_depends_on_the_key_and_on_where_one_part_ends(secret: bytes, one: str, other: str) -> None:
    assert digest(secret, one, other) == digest(secret, one, other)
    assert digest(secret + b"x", one, other) != digest(secret, one, other)
    assert digest(secret, one + "a", other) != digest(secret, one, "a" + other)


@law
@given(*2 * [st.lists(st.text(st.sampled_from("ab\x1f\x00 "), max_size=3), min_size=1, max_size=3)])
def test_e6_two_lists_of_parts_never_have_one_digest(parts: list[str], others: list[str]) -> None:
    assert (digest(b"key", *parts) == digest(b"key", *others)) == (parts == others)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Send it to Mallory", {"mallori"}),
        ("Always mail ann@example.org first", {"ann", "exampl", "org"}),
        ("Write to /etc/passwd", {"etc", "passwd"}),
        ("Never call before 9 am. Always knock", set()),
    ],
)
def test_k9_what_a_text_calls_by_name(text: str, names: set[str]) -> None:
    assert named(text) == names
