"""butler.toml and the environment as one frozen value; what is wrong is refused by file, key and mend (appendix C)."""

from __future__ import annotations

import re
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from butler_memory.errors import SetupError
from butler_memory.settings import ButlerSettings, MemorySettings, Settings, _leaves, load

DOCS = Path(__file__).parents[2] / "docs" / "settings.md"

# Every value differs from its default, so that one that does not arrive is seen.
EVERY_KEY = """
[butler]
name = "archive"
port = 8200
description = "What we know"

[butler.db]
name = "archive_memory"

[butler.schedule]
consolidate = { cron = "*/30 8-18 * * MON-FRI", prompt = "Consolidate now" }
decay_sweep = { cron = "15 2 * * *", prompt = "Sweep now" }
episode_cleanup = { cron = "0 5 1,15 jan-jun *", prompt = "Clean up now" }

[butler.memory]
enabled = false
embedding_model = "all-MiniLM-L6-v2"
embedding_dimensions = 384

[butler.memory.episodes]
default_ttl_days = 14
max_entries = 500
import_ttl_days = 365

[butler.memory.eden]
ttl_hours = 36
max_entries = 400

[butler.memory.facts]
retrieval_confidence_threshold = 0.3
expiry_confidence_threshold = 0.1
many_valued = false

[butler.memory.rules]
promote_to_established = { min_successes = 4, min_effectiveness = 0.5, min_age_days = 1 }
promote_to_proven = { min_successes = 20, min_effectiveness = 0.9, min_age_days = 60 }
harmful_to_antipattern = { min_harmful = 2, max_effectiveness = 0.4 }

[butler.memory.retrieval]
default_limit = 10
default_mode = "keyword"
context_token_budget = 2000
score_weights = { relevance = 0.7, importance = 0.1, recency = 0.15, confidence = 0.05 }
fusion = "rrf"
k = 30
gate = 80
floor = { relevance = 0.1, of_best = 0.5 }
quotas = { facts = 0.5, rules = 0.3, episodes = 0.2 }
core_share = 0.3
tokenizer = "wordpiece"
text_config = "german"

[butler.memory.schedule]
timezone = "Europe/Berlin"

[butler.memory.consolidation]
backend = "claude-code"
batch_size = 50
quiet_seconds = 0
max_retired_share = 0.05
daily_tokens = 300_000
model = "qwen3:8b"
base_url = "http://localhost:11434/v1"
timeout_seconds = 30
max_output_tokens = 4000

[butler.memory.butlers.health]
score_weights = { relevance = 0.25, importance = 0.25, recency = 0.25, confidence = 0.25 }
"""

# The contract's own file, 000: "butler.toml" and "Memory-Specific Configuration".
CONTRACT = """
[butler]
name = "memory"
port = 8150
description = "Memory of all butlers"

[butler.db]
name = "butler_memory"

[butler.schedule]
consolidate = { cron = "0 */6 * * *", prompt = "Consolidate" }
decay_sweep = { cron = "0 3 * * *", prompt = "Sweep" }
episode_cleanup = { cron = "0 4 * * *", prompt = "Clean up" }

[butler.memory]
embedding_model = "all-MiniLM-L6-v2"
embedding_dimensions = 384

[butler.memory.episodes]
default_ttl_days = 7
max_entries = 10000

[butler.memory.facts]
retrieval_confidence_threshold = 0.2
expiry_confidence_threshold = 0.05

[butler.memory.rules]
promote_to_established = { min_successes = 5, min_effectiveness = 0.6 }
promote_to_proven = { min_successes = 15, min_effectiveness = 0.8, min_age_days = 30 }
harmful_to_antipattern = { min_harmful = 3, max_effectiveness = 0.3 }

[butler.memory.retrieval]
default_limit = 20
default_mode = "hybrid"
context_token_budget = 3000
score_weights = { relevance = 0.4, importance = 0.3, recency = 0.2, confidence = 0.1 }
"""


@pytest.fixture(autouse=True)
def away_from_any_butler_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "butler.toml"


def read(file: Path, text: str, **environ: str) -> Settings:
    file.write_text(text)
    return load(file, prefixed(environ))


def prefixed(environ: dict[str, str]) -> dict[str, str]:
    return {f"BUTLER_MEMORY_{name}": text for name, text in environ.items()}


def refusal(file: Path, text: str, **environ: str) -> SetupError:
    with pytest.raises(SetupError) as caught:
        read(file, text, **environ)
    return caught.value


def refusal_of_environment(**environ: str) -> SetupError:
    with pytest.raises(SetupError) as caught:
        load(environ=prefixed(environ))
    return caught.value


def flat(table: dict[str, Any]) -> dict[str, Any]:
    """Dotted key -> value."""
    below = {key: flat(value) if isinstance(value, dict) else {"": value} for key, value in table.items()}
    return {f"{key}.{rest}".rstrip("."): value for key, inner in below.items() for rest, value in inner.items()}


def test_every_key_of_a_full_file_is_taken_over(file: Path) -> None:
    document = tomllib.loads(EVERY_KEY)["butler"]
    fixed = {key for key in flat(document) if not key.startswith("memory.butlers.")}
    assert fixed == {".".join(path) for path in _leaves(ButlerSettings)}
    assert read(file, EVERY_KEY).butler.model_dump() == document


def test_the_contracts_own_file_starts_and_says_the_defaults(file: Path) -> None:
    given, default = read(file, CONTRACT).butler, ButlerSettings()
    assert given.memory == default.memory
    assert (given.name, given.port, given.db) == (default.name, default.port, default.db)
    for name in type(given.schedule).model_fields:
        assert getattr(given.schedule, name).cron == getattr(default.schedule, name).cron


def test_the_defaults_would_be_accepted_too() -> None:
    """They are not validated when they are used."""
    default = ButlerSettings()
    assert ButlerSettings.model_validate(default.model_dump()) == default


def test_the_documented_defaults_are_those_of_the_code() -> None:
    told = dict(re.findall(r"^\| `([a-z_.<>]+)` \| `([^`]*)`", DOCS.read_text(), re.MULTILINE))
    for path in _leaves(MemorySettings):
        default: Any = MemorySettings()
        for name in path:
            default = getattr(default, name)
        assert told[".".join(path)] == ("not set" if default is None else said(default) or '""'), path
    for name, job in ButlerSettings().schedule:
        assert told[name] == job.cron


def test_a_part_of_a_table_leaves_the_rest_at_its_default(file: Path) -> None:
    settings = read(file, '[butler.schedule]\ndecay_sweep = { cron = "0 1 * * *" }\n[butler.memory.episodes]\n')
    assert settings.butler.schedule.decay_sweep.cron == "0 1 * * *"
    assert settings.butler.schedule.decay_sweep.prompt == ButlerSettings().schedule.decay_sweep.prompt
    assert settings.memory == MemorySettings()


def test_nothing_can_be_changed_after_the_start(file: Path) -> None:
    settings = read(file, EVERY_KEY)
    sections = (settings, settings.env, settings.butler.schedule.consolidate, settings.memory.consolidation)
    for section in sections:
        for name in type(section).model_fields:
            with pytest.raises(ValidationError, match="frozen"):
                setattr(section, name, getattr(section, name))


@pytest.mark.parametrize(
    ("text", "key", "right"),
    [
        ("[butler]\nprot = 1", "butler.prot", "Did you mean 'port'"),
        ("[butler.db]\nuser = 'x'", "butler.db.user", "Known keys here: name"),
        ("[butler.schedule]\nsweep = {}", "butler.schedule.sweep", "consolidate, decay_sweep, episode_cleanup"),
        ("[butler.schedule]\ndecay_sweep = {when = '1'}", "butler.schedule.decay_sweep.when", "cron, prompt"),
        ("[butler.memory]\nenable = true", "butler.memory.enable", "Did you mean 'enabled'"),
        ("[butler.memory.episode]\nx = 1", "butler.memory.episode", "Did you mean 'episodes'"),
        (
            "[butler.memory.facts]\nexpiry_threshold = 0.1",
            "butler.memory.facts.expiry_threshold",
            "Did you mean 'expiry_confidence_threshold'",
        ),
        (
            "[butler.memory.rules.promote_to_proven]\nmin_age = 1",
            "butler.memory.rules.promote_to_proven.min_age",
            "Did you mean 'min_age_days'",
        ),
        (
            "[butler.memory.retrieval.score_weights]\nconfidense = 1.0",
            "butler.memory.retrieval.score_weights.confidense",
            "Did you mean 'confidence'",
        ),
        ("[butler.memory.schedule]\nzone = 'UTC'", "butler.memory.schedule.zone", "timezone"),
        (
            "[butler.memory.butlers.health]\nweights = {}",
            "butler.memory.butlers.health.weights",
            "Did you mean 'score_weights'",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_the_known_ones(file: Path, text: str, key: str, right: str) -> None:
    error = refusal(file, text)
    assert error.message == f"{file}: {key}: unknown key."
    assert right in error.recovery


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        ("port", "0", "greater than or equal to 1"),
        ("port", "70000", "less than or equal to 65535"),
        ("name", "'Two Words'", "pattern"),
        ("db.name", "'robert; drop'", "pattern"),
        ("schedule.decay_sweep.cron", "'0 3 * *'", "five fields"),
        ("schedule.decay_sweep.cron", "'0 3 * * * *'", "five fields"),
        ("schedule.decay_sweep.cron", "'@daily'", "five fields"),
        ("schedule.decay_sweep.cron", "'0 3 * * FUNDAY'", "like '0 */6 * * *'"),
        ("schedule.decay_sweep.cron", "''", "five fields"),
        ("schedule.decay_sweep.cron", "5", "string"),
        ("schedule.decay_sweep.prompt", "5", "string"),
        ("schedule.decay_sweep", "'0 3 * * *'", "must be a table"),
        ("memory.enabled", "'perhaps'", "boolean"),
        ("memory.embedding_model", "'text-embedding-9'", "all-MiniLM-L6-v2"),
        ("memory.embedding_dimensions", "768", "384"),
        ("memory.episodes", "7", "must be a table"),
        ("memory.episodes.default_ttl_days", "0", "greater than 0"),
        ("memory.episodes.default_ttl_days", "36500", "less than or equal to 3650"),
        ("memory.episodes.default_ttl_days", "nan", "finite"),
        ("memory.episodes.default_ttl_days", "inf", "finite"),
        ("memory.episodes.max_entries", "0", "greater than or equal to 1"),
        ("memory.facts.retrieval_confidence_threshold", "20", "less than or equal to 1"),
        ("memory.retrieval.default_limit", "201", "less than or equal to 200"),
        ("memory.retrieval.default_limit", "2.5", "integer"),
        ("memory.retrieval.default_mode", "'fuzzy'", "'hybrid', 'semantic' or 'keyword'"),
        ("memory.retrieval.fusion", "'sum'", "'convex' or 'rrf'"),
        ("memory.retrieval.text_config", "'english; --'", "pattern"),
        ("memory.retrieval.floor.relevance", "-0.1", "greater than or equal to 0"),
        ("memory.schedule.timezone", "'Mars/Olympus'", "'UTC' or 'Europe/Berlin'"),
        ("memory.schedule.timezone", "'Europe'", "name of a time zone"),
        ("memory.schedule.timezone", "'../../etc/passwd'", "name of a time zone"),
        ("memory.schedule.timezone", "''", "name of a time zone"),
        (
            "memory.consolidation.backend",
            "'gpt'",
            "'offline', 'claude-code', 'anthropic' or 'openai'",
        ),
        ("memory.consolidation.batch_size", "0", "greater than or equal to 1"),
        ("memory.consolidation.quiet_seconds", "-1", "greater than or equal to 0"),
        ("memory.consolidation.max_retired_share", "1.1", "less than or equal to 1"),
        ("memory.consolidation.model", "'--dangerous'", "pattern"),
        ("memory.consolidation.base_url", "'localhost:11434'", "like 'http://localhost:11434/v1'"),
        ("memory.consolidation.base_url", "'ftp://models'", "like 'http://localhost:11434/v1'"),
        ("memory.consolidation.base_url", "'https://me:secret@models'", "without a password"),
        ("memory.consolidation.base_url", "'https://models?key=secret'", "without a password or a query"),
        ("memory.consolidation.timeout_seconds", "0", "greater than 0"),
        ("memory.consolidation.max_output_tokens", "0", "greater than or equal to 1"),
        ("memory.butlers.health.score_weights.relevance", "2", "less than or equal to 1"),
    ],
)
def test_a_bad_value_is_refused_with_what_would_be_right(file: Path, key: str, value: str, right: str) -> None:
    error = refusal(file, f"butler.{key} = {value}")
    assert error.message.startswith(f"{file}: butler.{key}: ")
    assert right in error.message
    assert "docs/settings.md" in error.recovery


@pytest.mark.parametrize(
    "key",
    ["memory.episodes.max_entries", "memory.retrieval.k", "memory.consolidation.quiet_seconds", "port"],
)
def test_true_is_no_number(file: Path, key: str) -> None:
    error = refusal(file, f"butler.{key} = true")
    assert f"{key.rpartition('.')[2]} must be a number" in error.message


@pytest.mark.parametrize("cron", ["* * * * *", "0 0 1 JAN mon", "*/5 0-23/2 1,15 * MON-FRI", "  0   3 * * 7 "])
def test_a_cron_has_five_fields_of_numbers_signs_and_names(file: Path, cron: str) -> None:
    assert read(file, f"butler.schedule.consolidate.cron = '{cron}'").butler.schedule.consolidate.cron == cron


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "facts = {retrieval_confidence_threshold = 0.05, expiry_confidence_threshold = 0.05}",
            "expiry_confidence_threshold must be below retrieval_confidence_threshold",
        ),
        ("facts = {retrieval_confidence_threshold = 0.04}", "must be below"),
        ("retrieval.score_weights = {relevance = 0.9}", "must add up to 1, not 1.5"),
        (
            "retrieval.score_weights = {relevance = 0, importance = 0, recency = 0, confidence = 0}",
            "must add up to 1, not 0",
        ),
        ("butlers.health.score_weights = {relevance = 1.0}", "must add up to 1"),
        ("retrieval.quotas = {facts = 0.7, rules = 0.3, episodes = 0.1}", "must not add up to more than 1"),
    ],
)
def test_values_that_contradict_each_other_are_refused(file: Path, text: str, said: str) -> None:
    error = refusal(file, f"[butler.memory]\n{text}")
    assert error.message.startswith(f"{file}: butler.memory.{text.partition(' ')[0]}: ")
    assert said in error.message


@pytest.mark.parametrize(
    "text",
    [
        "score_weights = {relevance = 0.7, importance = 0.2, recency = 0.1, confidence = 0}",
        "quotas = {facts = 0.33, rules = 0.56, episodes = 0.11}",
        "quotas = {facts = 0.1, rules = 0.1, episodes = 0.1}",
    ],
)
def test_sums_are_compared_as_people_add(file: Path, text: str) -> None:
    """To a machine 0.7 + 0.2 + 0.1 is less than 1, and 0.33 + 0.56 + 0.11 is more."""
    assert read(file, f"[butler.memory.retrieval]\n{text}").memory != MemorySettings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[butlers]\n", "unknown section [butlers]"),
        ("[memory]\nenabled = true", "unknown section [memory]"),
        ("butler = 5", "butler must be a table"),
        ("modules = []", "modules must be a table"),
        ("[butler", "cannot be read as TOML"),
        ("x = 1\nx = 2", "cannot be read as TOML"),
        ("x = " + "[" * 5000, "cannot be read as TOML"),
    ],
)
def test_a_file_of_another_kind_is_refused_by_name(file: Path, text: str, said: str) -> None:
    error = refusal(file, text)
    assert error.message.startswith(str(file))
    assert said in error.message
    assert error.recovery


def test_bytes_that_are_no_utf8_are_refused(file: Path) -> None:
    file.write_bytes(b"[butler]\ndescription = '\xff'")
    with pytest.raises(SetupError, match="cannot be read as TOML"):
        load(file, {})


def test_a_byte_order_mark_is_no_part_of_the_first_key(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf[butler]\nport = 8200")
    assert load(file, {}).butler.port == 8200


def test_a_named_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    for absent in (tmp_path / "no.toml", tmp_path):
        for named in ({"file": absent, "environ": {}}, {"environ": {"BUTLER_MEMORY_CONFIG": str(absent)}}):
            with pytest.raises(SetupError, match=re.escape(f"{absent} does not exist")):
                load(**named)


def test_without_a_name_the_file_of_the_working_directory_is_read() -> None:
    assert load(environ={}).source == "defaults"
    Path("butler.toml").write_text("butler.port = 8200")
    settings = load(environ={})
    assert (settings.butler.port, settings.source) == (8200, "butler.toml")


def test_a_file_named_by_an_option_wins_over_the_variable(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("butler.port = 8300")
    assert load(environ={"BUTLER_MEMORY_CONFIG": str(other)}).butler.port == 8300
    assert read(file, "butler.port = 8200", CONFIG=str(other)).butler.port == 8200


def test_inside_a_host_the_same_keys_stand_under_modules_memory(file: Path) -> None:
    text = EVERY_KEY.replace("[butler.memory", "[modules.memory")
    assert read(file, text).butler == read(file, EVERY_KEY).butler
    assert read(file, text, EPISODES__MAX_ENTRIES="3").memory.episodes.max_entries == 3


def test_inside_a_host_refusals_name_the_table_that_is_there(file: Path) -> None:
    error = refusal(file, "[modules.memory.episodes]\ndefault_ttl_dayz = 3")
    assert error.message == f"{file}: modules.memory.episodes.default_ttl_dayz: unknown key."
    assert "Did you mean 'default_ttl_days'" in error.recovery


def test_other_modules_of_a_host_are_none_of_our_business(file: Path) -> None:
    assert read(file, "[modules.telegram]\ntoken_env = 'X'\n[modules.memory]\nenabled = false").memory.enabled is False


def test_both_tables_at_once_are_refused(file: Path) -> None:
    error = refusal(file, "[butler.memory]\nenabled = true\n[modules.memory]\nenabled = false")
    assert error.message == f"{file}: both [butler.memory] and [modules.memory] are there."
    assert error.recovery == "Keep one of the two."


def test_the_environment_goes_over_the_file(file: Path) -> None:
    settings = read(
        file,
        "[butler]\nport = 8200\nname = 'kept'\n[butler.memory.retrieval]\ndefault_limit = 10\nk = 30",
        PORT="8300",
        DB_NAME="other",
        RETRIEVAL__DEFAULT_LIMIT="7",
        RETRIEVAL__FLOOR__OF_BEST="0",
        FACTS__MANY_VALUED="false",
        SCHEDULE__TIMEZONE="Asia/Tokyo",
        CONSOLIDATION__BACKEND="openai",
    )
    assert (settings.butler.port, settings.butler.name, settings.butler.db.name) == (8300, "kept", "other")
    retrieval = settings.memory.retrieval
    assert (retrieval.default_limit, retrieval.k, retrieval.floor.of_best) == (7, 30, 0.0)
    assert settings.memory.facts.many_valued is False
    assert (settings.memory.schedule.timezone, settings.memory.consolidation.backend) == ("Asia/Tokyo", "openai")


def test_every_key_of_the_memory_has_its_variable() -> None:
    document = tomllib.loads(EVERY_KEY)["butler"]["memory"]
    values = {key: value for key, value in flat(document).items() if not key.startswith("butlers.")}
    settings = load(environ=prefixed({key.replace(".", "__").upper(): said(value) for key, value in values.items()}))
    assert flat(settings.memory.model_dump()) == values


def said(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize(
    ("name", "text", "key", "right"),
    [
        ("PORT", "http", "butler.port", "integer"),
        ("DB_NAME", "My Database", "butler.db.name", "pattern"),
        ("ENABLED", "perhaps", "butler.memory.enabled", "boolean"),
        ("EPISODES__DEFAULT_TTL_DAYS", "-1", "butler.memory.episodes.default_ttl_days", "greater than 0"),
        ("RETRIEVAL__DEFAULT_MODE", "fuzzy", "butler.memory.retrieval.default_mode", "'keyword'"),
        ("RETRIEVAL__K", "true", "butler.memory.retrieval", "k must be a number"),
        ("RETRIEVAL__SCORE_WEIGHTS__RECENCY", "0.9", "butler.memory.retrieval.score_weights", "add up to 1"),
        ("FACTS__EXPIRY_CONFIDENCE_THRESHOLD", "0.5", "butler.memory.facts", "must be below"),
        ("SCHEDULE__TIMEZONE", "Mars/Olympus", "butler.memory.schedule.timezone", "'UTC' or 'Europe/Berlin'"),
    ],
)
def test_a_bad_variable_is_refused_by_its_name_and_key(name: str, text: str, key: str, right: str) -> None:
    error = refusal_of_environment(**{name: text})
    assert error.message.startswith(f"BUTLER_MEMORY_{name}: {key}: ")
    assert right in error.message
    assert "docs/settings.md" in error.recovery


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("PROT", "Did you mean 'BUTLER_MEMORY_PORT'"),
        ("EPISODES__DEFAULT_TTL_DAYZ", "Did you mean 'BUTLER_MEMORY_EPISODES__DEFAULT_TTL_DAYS'"),
        ("DATABASE_URI", "Did you mean 'BUTLER_MEMORY_DATABASE_URL'"),
        ("EPISODES", "docs/settings.md"),
        ("RETRIEVAL__FLOOR", "docs/settings.md"),
        ("RETRIEVAL__K__MORE", "docs/settings.md"),
        ("BUTLERS__HEALTH__SCORE_WEIGHTS", "docs/settings.md"),
        ("SCHEDULE__CONSOLIDATE__CRON", "docs/settings.md"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_one(name: str, right: str) -> None:
    error = refusal_of_environment(**{name: "1"})
    assert error.message == f"The environment variable BUTLER_MEMORY_{name} is unknown."
    assert right in error.recovery


@pytest.mark.parametrize(
    ("name", "text", "right"),
    [
        ("PROJECT", "Two Words", "pattern"),
        ("TRIGGER_CLASS", "cron", "'session' or 'maintenance'"),
        ("CLOCK_OFFSET", "tomorrow", "not an offset"),
        ("CLOCK_OFFSET", "+99999d", "out of range"),
    ],
)
def test_a_bad_variable_of_the_process_is_refused(name: str, text: str, right: str) -> None:
    error = refusal_of_environment(**{name: text})
    assert error.message.startswith(f"BUTLER_MEMORY_{name}")
    assert right in error.message
    assert error.recovery


def test_what_the_file_says_wrong_is_the_files_even_beside_variables(file: Path) -> None:
    error = refusal(file, "butler.memory.retrieval.gate = 0", RETRIEVAL__K="30")
    assert error.message.startswith(f"{file}: butler.memory.retrieval.gate: ")


def test_a_variable_heals_what_the_file_says_wrong(file: Path) -> None:
    assert read(file, "butler.memory.retrieval.gate = 0", RETRIEVAL__GATE="9").memory.retrieval.gate == 9


def test_an_empty_variable_is_an_unset_one(file: Path) -> None:
    fixed = ("HOST", "PORT", "DATA_DIR", "CONFIG", "TOKEN", "PROJECT", "CLOCK_OFFSET", "RETRIEVAL__K", "NO_SUCH_KEY")
    empty = load(environ=prefixed(dict.fromkeys(fixed, "")))
    assert empty == load(environ={})
    assert empty.env.host == "127.0.0.1", "and not every address"
    assert read(file, "butler.port = 8200", PORT="").butler.port == 8200


def test_variables_of_other_programs_are_not_looked_at() -> None:
    assert load(environ={"BUTLER_MEMORYX": "1", "BUTLERS_PORT": "9", "PORT": "80"}) == load(environ={})


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("+210d", timedelta(days=210)),
        ("-3h", timedelta(hours=-3)),
        ("90m", timedelta(minutes=90)),
        ("1.5s", timedelta(seconds=1.5)),
    ],
)
def test_a_clock_offset_is_a_signed_number_with_its_unit(text: str, offset: timedelta) -> None:
    assert load(environ={"BUTLER_MEMORY_CLOCK_OFFSET": text}).env.clock_offset == offset


def test_g7_no_refusal_and_no_printed_settings_hold_a_secret(file: Path) -> None:
    names = ("TOKEN", "DATABASE_URL", "OWNER_URL", "WORKER_URL", "LLM_API_KEY")
    secrets = dict.fromkeys(names, "violet-heron-4711")
    assert "violet-heron" not in repr(read(file, "", **secrets))
    error = refusal(file, "butler.prot = 1", **secrets)
    assert "violet-heron" not in error.message + error.recovery
    error = refusal_of_environment(**secrets, TRIGGER_CLASS="violet-heron-4711")
    assert "violet-heron" not in error.message + error.recovery
