"""butler.toml and the environment over it, as one frozen value (SPEC appendix C).

An unknown key or a bad value stops the start, with the file, the key and what would be right.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
import zoneinfo
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

import platformdirs
from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from butler_memory.errors import SetupError

PREFIX = "BUTLER_MEMORY_"
Share = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveInt = Annotated[int, Field(ge=1)]
Secret = Annotated[str, Field(repr=False)]
FURTHEST_CLOCK_OFFSET = timedelta(days=36_525)  # a century: beyond it, dates run out of their range
_HOST_NAME = re.compile(r"[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]")


def _cron(text: str) -> str:
    with suppress(CronSimError, StopIteration):
        if len(text.split()) == 5:
            next(CronSim(text, datetime(2026, 1, 1, tzinfo=UTC)))  # it must also name a time that comes
            return text
    raise ValueError("must be five fields (minute, hour, day, month, weekday) that some time fits, like '0 */6 * * *'")


def _timezone(name: str) -> str:
    try:
        zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # OSError: a directory of zones, like 'Europe'
        raise ValueError("must be the name of a time zone, like 'UTC' or 'Europe/Berlin'") from None
    return name


def _split(text: Any) -> Any:
    return [part.strip() for part in text.split(",") if part.strip()] if isinstance(text, str) else text


def _host_name(name: str) -> str:
    if not _HOST_NAME.fullmatch(name):
        raise ValueError("must be names or addresses without scheme and port, separated by commas")
    return name


def _bare(host: str) -> str:
    """An IPv6 address is bracketed in an URL, but not where it is bound."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _endpoint(url: str) -> str:
    if not url:
        return url
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and not (parts.username or parts.query):
            return url.rstrip("/")
    raise ValueError("must be an address like 'http://localhost:11434/v1', without a password or a query in it")


def _butler(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,62}", name) or name == "global":
        raise ValueError("must be a butler's name: lower case letters, digits, '-' and '_', and not 'global'")
    return name


Cron = Annotated[str, AfterValidator(_cron)]
Timezone = Annotated[str, AfterValidator(_timezone)]
ButlerName = Annotated[str, AfterValidator(_butler)]
HostName = Annotated[str, AfterValidator(_host_name)]
Endpoint = Annotated[str, AfterValidator(_endpoint)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _true_is_no_number(cls, values: Any) -> Any:
        for name, value in values.items() if isinstance(values, dict) else ():
            field = cls.model_fields.get(name)
            if field and {int, float} & {field.annotation, *get_args(field.annotation)} and isinstance(value, bool):
                raise ValueError(f"{name} must be a number, not true or false")
        return values


SectionT = TypeVar("SectionT", bound=Section)


class EpisodeSettings(Section):
    default_ttl_days: Annotated[float, Field(gt=0, le=3650)] = 7
    max_entries: PositiveInt = 10_000
    import_ttl_days: Annotated[float, Field(gt=0, le=3650)] = 90


class EdenSettings(Section):
    """The older plan's words for how long episodes live and how many there are: where set, they win (J4)."""

    ttl_hours: Annotated[float | None, Field(gt=0, le=87_600)] = None
    max_entries: Annotated[int | None, Field(ge=1)] = None


class FactSettings(Section):
    retrieval_confidence_threshold: Share = 0.2
    expiry_confidence_threshold: Share = 0.05
    many_valued: bool = True

    @model_validator(mode="after")
    def _expiry_is_below_retrieval(self) -> Self:
        if self.expiry_confidence_threshold >= self.retrieval_confidence_threshold:
            raise ValueError("expiry_confidence_threshold must be below retrieval_confidence_threshold")
        return self


class Promotion(Section):
    min_successes: PositiveInt = 5
    min_effectiveness: Share = 0.6
    min_age_days: Annotated[float, Field(ge=0)] = 0


class PromotionToProven(Promotion):
    min_successes: PositiveInt = 15
    min_effectiveness: Share = 0.8
    min_age_days: Annotated[float, Field(ge=0)] = 30


class Inversion(Section):
    min_harmful: PositiveInt = 3
    max_effectiveness: Share = 0.3


class RuleSettings(Section):
    promote_to_established: Promotion = Promotion()
    promote_to_proven: PromotionToProven = PromotionToProven()
    harmful_to_antipattern: Inversion = Inversion()


class ScoreWeights(Section):
    relevance: Share = 0.4
    importance: Share = 0.3
    recency: Share = 0.2
    confidence: Share = 0.1

    @model_validator(mode="after")
    def _sum_is_one(self) -> Self:
        total = self.relevance + self.importance + self.recency + self.confidence
        if abs(total - 1.0) > 1e-6:
            raise ValueError(f"the weights must add up to 1, not {total:g}")
        return self


class FloorSettings(Section):
    relevance: Share = 0.25
    of_best: Share = 0.6


class Quotas(Section):
    facts: Share = 0.60
    rules: Share = 0.25
    episodes: Share = 0.15

    @model_validator(mode="after")
    def _no_more_than_all(self) -> Self:
        if self.facts + self.rules + self.episodes > 1.0 + 1e-9:
            raise ValueError("the quotas must not add up to more than 1")
        return self


class RetrievalSettings(Section):
    default_limit: Annotated[int, Field(ge=1, le=200)] = 20
    default_mode: Literal["hybrid", "semantic", "keyword"] = "hybrid"
    context_token_budget: Annotated[int, Field(ge=1, le=100_000)] = 3000
    score_weights: ScoreWeights = ScoreWeights()
    fusion: Literal["convex", "rrf"] = "convex"
    k: PositiveInt = 60
    gate: Annotated[int, Field(ge=1, le=1000)] = 50
    floor: FloorSettings = FloorSettings()
    quotas: Quotas = Quotas()
    core_share: Share = 0.2
    tokenizer: Literal["o200k_base", "wordpiece"] = "o200k_base"
    text_config: Annotated[str, Field(pattern=r"^[a-z_]{1,63}$")] = "english"


class ScheduleSettings(Section):
    timezone: Timezone = "UTC"


class ConsolidationSettings(Section):
    backend: Literal["offline", "claude-code", "anthropic", "openai"] = "offline"
    batch_size: PositiveInt = 20
    quiet_seconds: Annotated[float, Field(ge=0)] = 60
    max_retired_share: Share = 0.1
    daily_tokens: PositiveInt = 2_000_000
    model: Annotated[str, Field(pattern=r"^([A-Za-z0-9][!-~]{0,199})?$")] = ""
    base_url: Endpoint = ""
    timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 120
    max_output_tokens: Annotated[int, Field(ge=1, le=200_000)] = 8000


class ButlerOverrides(Section):
    """What one butler may have of its own."""

    score_weights: ScoreWeights | None = None


class MemorySettings(Section):
    enabled: bool = True
    embedding_model: Literal["all-MiniLM-L6-v2"] = "all-MiniLM-L6-v2"
    embedding_dimensions: Literal[384] = 384
    episodes: EpisodeSettings = EpisodeSettings()
    eden: EdenSettings = EdenSettings()
    facts: FactSettings = FactSettings()
    rules: RuleSettings = RuleSettings()
    retrieval: RetrievalSettings = RetrievalSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    consolidation: ConsolidationSettings = ConsolidationSettings()
    butlers: dict[ButlerName, ButlerOverrides] = {}

    @property
    def episode_ttl_days(self) -> float:
        return self.eden.ttl_hours / 24 if self.eden.ttl_hours else self.episodes.default_ttl_days

    @property
    def episode_capacity(self) -> int:
        return self.eden.max_entries or self.episodes.max_entries

    def weights_of(self, butler: str) -> ScoreWeights:
        own = self.butlers.get(butler)
        return own.score_weights if own and own.score_weights else self.retrieval.score_weights


class DatabaseSettings(Section):
    name: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,62}$")] = "butler_memory"


class Job(Section):
    """When a job of the engine runs, and what a host tells the session that it starts for it."""

    cron: Cron
    prompt: str


class Consolidate(Job):
    cron: Cron = "0 */6 * * *"
    prompt: str = "Consolidate the episodes that wait"


class DecaySweep(Job):
    cron: Cron = "0 3 * * *"
    prompt: str = "Sweep for what has faded or expired"


class EpisodeCleanup(Job):
    cron: Cron = "0 4 * * *"
    prompt: str = "Delete the episodes whose time is over"


class Jobs(Section):
    consolidate: Consolidate = Consolidate()
    decay_sweep: DecaySweep = DecaySweep()
    episode_cleanup: EpisodeCleanup = EpisodeCleanup()


class ButlerSettings(Section):
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")] = "memory"
    port: Annotated[int, Field(ge=1, le=65535)] = 8150
    description: str = "Shared long-term memory of all butlers"
    db: DatabaseSettings = DatabaseSettings()
    schedule: Jobs = Jobs()
    memory: MemorySettings = MemorySettings()


class Environment(Section):
    """What only the environment can say: places, secrets and the test clock."""

    data_dir: Path
    model_path: Path | None = None
    model_cache: Path
    host: Annotated[str, AfterValidator(_bare)] = "127.0.0.1"
    allowed_hosts: Annotated[tuple[HostName, ...], BeforeValidator(_split)] = ()
    database_url: Secret = ""
    owner_url: Secret = ""
    worker_url: Secret = ""
    token: Secret = ""
    llm_api_key: Secret = ""
    project: Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9._-]{0,62})?$")] = ""
    trigger_class: Literal["session", "maintenance"] = "session"
    clock_offset: timedelta = timedelta(0)


class Settings(Section):
    butler: ButlerSettings
    env: Environment
    source: str = "defaults"

    @property
    def memory(self) -> MemorySettings:
        return self.butler.memory


# Environment names outside [butler.memory]; each of its keys is reached by its path with double underscores,
# e.g. BUTLER_MEMORY_EPISODES__DEFAULT_TTL_DAYS.
_BUTLER_KEYS = {"PORT": ("port",), "NAME": ("name",), "DESCRIPTION": ("description",), "DB_NAME": ("db", "name")}

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class _Origin:
    """Where the values came from, so that a refusal can name the place to mend."""

    file: str
    memory_table: str = "butler.memory"
    variables: Mapping[KeyPath, str] = field(default_factory=dict)

    def of(self, where: KeyPath) -> str:
        named = [name for path, name in self.variables.items() if _one_holds_the_other(path, where)]
        dotted = ".".join((self.memory_table, *where[1:]) if where[:1] == ("memory",) else ("butler", *where))
        return f"{', '.join(named) or self.file}: {dotted}"


def load(file: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read `file` (or the one BUTLER_MEMORY_CONFIG names, or ./butler.toml) and the environment over it."""
    environ = os.environ if environ is None else environ
    # An empty variable is an unset one: as a path or a host it would mean "here" and "everywhere".
    given = {name: text for name, text in environ.items() if name.startswith(PREFIX) and text}
    path = _config_file(file, given.pop(f"{PREFIX}CONFIG", ""))
    butler, memory_table = _read_toml(path) if path else ({}, "butler.memory")
    env: dict[str, Any] = {
        "data_dir": Path(platformdirs.user_data_dir("butler-memory", appauthor=False)),
        "model_cache": Path(platformdirs.user_cache_dir("butler-memory", appauthor=False)) / "models",
    }
    source = str(path) if path else "defaults"
    variables = _apply_environment(given, butler, env)
    origin = _Origin(source, memory_table, variables)
    return Settings(
        butler=_validated(ButlerSettings, butler, origin.of),
        env=_validated(Environment, env, lambda where: PREFIX + ".".join(where).upper()),
        source=source,
    )


def parse_offset(text: str) -> timedelta:
    """'+210d', '-3h', '90m' or '45s'."""
    match = re.fullmatch(r"([+-]?)([0-9]{1,12}(?:\.[0-9]{1,6})?)([dhms])", text.strip())
    if not match:
        raise SetupError(f"{PREFIX}CLOCK_OFFSET is not an offset.", recovery="Write it like '+210d', '-3h' or '90m'.")
    sign, number, unit = match.groups()
    seconds = float(number) * {"d": 86_400, "h": 3_600, "m": 60, "s": 1}[unit]
    if seconds > FURTHEST_CLOCK_OFFSET.total_seconds():
        raise SetupError(f"{PREFIX}CLOCK_OFFSET is out of range.", recovery="Stay within a hundred years.")
    return timedelta(seconds=-seconds if sign == "-" else seconds)


def _config_file(file: Path | None, variable: str) -> Path | None:
    named = file or (Path(variable) if variable else None)
    if named:
        if not named.is_file():
            raise SetupError(f"The settings file {named} does not exist.", recovery="Correct its path.")
        return named
    local = Path("butler.toml")
    return local if local.is_file() else None


def _read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """The keys of [butler], and the name of the table that its `memory` came from."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError, OSError) as error:  # bad TOML and bad UTF-8 are ValueErrors
        raise SetupError(f"{path} cannot be read as TOML: {error}", recovery="Correct the file.") from error
    butler = _table(path, document.pop("butler", {}), "butler")
    modules = _table(path, document.pop("modules", {}), "modules")
    if document:
        key = next(iter(document))
        raise SetupError(
            f"{path}: unknown section [{key}].", recovery="Known sections are [butler] and [modules.memory]."
        )
    if "memory" not in modules:
        return butler, "butler.memory"
    if "memory" in butler:
        raise SetupError(
            f"{path}: both [butler.memory] and [modules.memory] are there.", recovery="Keep one of the two."
        )
    return {**butler, "memory": modules["memory"]}, "modules.memory"  # the same keys inside a hosting butler


def _table(path: Path, value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SetupError(f"{path}: {name} must be a table.", recovery=f"Write it as [{name}].")
    return value


def _apply_environment(given: Mapping[str, str], butler: dict[str, Any], env: dict[str, Any]) -> dict[KeyPath, str]:
    """Puts each variable in its place; returns which variable set which key of butler.toml."""
    set_by: dict[KeyPath, str] = {}
    for name, text in given.items():
        rest = name.removeprefix(PREFIX)
        if rest.lower() in Environment.model_fields:
            env[rest.lower()] = parse_offset(text) if rest == "CLOCK_OFFSET" else text
        else:
            keys = _BUTLER_KEYS.get(rest) or ("memory", *rest.lower().split("__"))
            _set_deep(butler, keys, text, name)
            set_by[keys] = name
    return set_by


def _set_deep(tree: dict[str, Any], keys: KeyPath, text: str, name: str) -> None:
    kind: Any = ButlerSettings
    for key in keys:
        kind = _child(kind, key)
    if kind is None or _model_in(kind):
        raise SetupError(f"The environment variable {name} is unknown.", recovery=_known_variable(name))
    *path, last = keys
    for key in path:
        below = tree.setdefault(key, {})
        if not isinstance(below, dict):
            return  # the file has a value where a table belongs, and is refused for it
        tree = below
    tree[last] = text if kind is str else _as_toml(text)


def _as_toml(text: str) -> Any:
    try:
        document = tomllib.loads(f"v = {text}")
    except (ValueError, RecursionError):
        return text  # a bare word is text
    return document["v"] if len(document) == 1 else text


def _child(annotation: Any, key: str) -> Any:
    """The type of what `key` names inside a section, or inside a table of sections; None if nothing."""
    if get_origin(annotation) is dict:
        return get_args(annotation)[1]
    model = _model_in(annotation)
    found = model.model_fields.get(key) if model else None
    return found.annotation if found else None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The section that a type is, or may be."""
    inside = [annotation] if get_origin(annotation) is not UnionType else get_args(annotation)
    return next((t for t in inside if isinstance(t, type) and issubclass(t, BaseModel)), None)


def _validated(model: type[SectionT], values: dict[str, Any], place: Callable[[KeyPath], str]) -> SectionT:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = tuple(str(part) for part in first["loc"] if part != "[key]")  # pydantic's word for a bad name
        raise SetupError(f"{place(where)}: {_said(first)}.", recovery=_right(model, where, first["type"])) from None


def _said(error: ErrorDetails) -> str:
    match error["type"]:
        case "extra_forbidden":
            return "unknown key"
        case "model_type":
            return "must be a table"
        case _:
            return error["msg"].removeprefix("Value error, ")


def _right(model: type[BaseModel], where: KeyPath, kind: str) -> str:
    if kind != "extra_forbidden":
        return "Correct the value; docs/settings.md lists every key with its default."
    annotation: Any = model
    for key in where[:-1]:
        annotation = _child(annotation, key)
    section = _model_in(annotation)
    known = sorted(section.model_fields) if section else []
    return f"{_did_you_mean(where[-1], known)}Known keys here: {', '.join(known)}."


def _known_variable(name: str) -> str:
    known = [known.removeprefix(PREFIX) for known in variables()]
    return f"{_did_you_mean(name.removeprefix(PREFIX), known, PREFIX)}docs/settings.md lists every variable."


def variables() -> list[str]:
    """Every environment variable that has a fixed name."""
    keys = [*Environment.model_fields, "config", *_BUTLER_KEYS, *("__".join(p) for p in _leaves(MemorySettings))]
    return [PREFIX + key.upper() for key in keys]


def _leaves(model: type[BaseModel]) -> Iterator[KeyPath]:
    for name, field_ in model.model_fields.items():
        below = _model_in(field_.annotation)
        if below:
            yield from ((name, *path) for path in _leaves(below))
        elif get_origin(field_.annotation) is not dict:
            yield (name,)


def _did_you_mean(wrong: str, known: list[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(wrong, known, n=1)
    return f"Did you mean '{prefix}{close[0]}'? " if close else ""


def _one_holds_the_other(one: KeyPath, other: KeyPath) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
