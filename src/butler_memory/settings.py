"""butler.toml and the environment over it, as one frozen value (SPEC appendix C).

An unknown key or a bad value stops the start, with the file, the key and what would be right.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from butler_memory.errors import SetupError

PREFIX = "BUTLER_MEMORY_"
Share = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveInt = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


SectionT = TypeVar("SectionT", bound=Section)


class EpisodeSettings(Section):
    default_ttl_days: Annotated[float, Field(gt=0, le=3650)] = 7
    max_entries: PositiveInt = 10_000
    import_ttl_days: Annotated[float, Field(gt=0, le=3650)] = 90


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
    min_successes: PositiveInt
    min_effectiveness: Share
    min_age_days: Annotated[float, Field(ge=0)] = 0


class Inversion(Section):
    min_harmful: PositiveInt = 3
    max_effectiveness: Share = 0.3


class RuleSettings(Section):
    promote_to_established: Promotion = Promotion(min_successes=5, min_effectiveness=0.6)
    promote_to_proven: Promotion = Promotion(min_successes=15, min_effectiveness=0.8, min_age_days=30)
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


class ButlerOverrides(Section):
    """What one butler may have of its own."""

    score_weights: ScoreWeights | None = None


class MemorySettings(Section):
    enabled: bool = True
    embedding_model: Literal["all-MiniLM-L6-v2"] = "all-MiniLM-L6-v2"
    embedding_dimensions: Literal[384] = 384
    episodes: EpisodeSettings = EpisodeSettings()
    facts: FactSettings = FactSettings()
    rules: RuleSettings = RuleSettings()
    retrieval: RetrievalSettings = RetrievalSettings()
    butlers: dict[str, ButlerOverrides] = {}

    def weights_of(self, butler: str) -> ScoreWeights:
        own = self.butlers.get(butler)
        return own.score_weights if own and own.score_weights else self.retrieval.score_weights


class DatabaseSettings(Section):
    name: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,62}$")] = "butler_memory"


class ButlerSettings(Section):
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")] = "memory"
    port: Annotated[int, Field(ge=1, le=65535)] = 8150
    description: str = "Shared long-term memory of all butlers"
    db: DatabaseSettings = DatabaseSettings()
    memory: MemorySettings = MemorySettings()


class Environment(Section):
    """What only the environment can say: places, secrets and the test clock."""

    data_dir: Path
    model_path: Path | None = None
    model_cache: Path
    host: str = "127.0.0.1"
    database_url: str = ""
    owner_url: str = ""
    worker_url: str = ""
    token: str = ""
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


# Environment names that set one key of butler.toml; every other key is reached with double underscores,
# e.g. BUTLER_MEMORY_EPISODES__DEFAULT_TTL_DAYS.
_BUTLER_KEYS = {"PORT": ("port",), "NAME": ("name",), "DB_NAME": ("db", "name")}


def load(file: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read `file` (or the one BUTLER_MEMORY_CONFIG names, or ./butler.toml) and the environment over it."""
    environ = os.environ if environ is None else environ
    path = _config_file(file, environ)
    butler = _read_toml(path) if path else {}
    env: dict[str, Any] = {
        "data_dir": Path(platformdirs.user_data_dir("butler-memory", appauthor=False)),
        "model_cache": Path(platformdirs.user_cache_dir("butler-memory", appauthor=False)) / "models",
    }
    _apply_environment(environ, butler, env)
    where = str(path) if path else "defaults"
    return Settings(
        butler=_validated(ButlerSettings, butler, where, "butler"),
        env=_validated(Environment, env, "the environment", ""),
        source=where,
    )


def parse_offset(text: str) -> timedelta:
    """'+210d', '-3h', '90m' or '45s'."""
    match = re.fullmatch(r"([+-]?)(\d+(?:\.\d+)?)([dhms])", text.strip())
    if not match:
        raise SetupError(f"{PREFIX}CLOCK_OFFSET is not an offset.", recovery="Write it like '+210d', '-3h' or '90m'.")
    sign, number, unit = match.groups()
    seconds = float(number) * {"d": 86_400, "h": 3_600, "m": 60, "s": 1}[unit]
    return timedelta(seconds=-seconds if sign == "-" else seconds)


def _config_file(file: Path | None, environ: Mapping[str, str]) -> Path | None:
    named = file or (Path(environ[f"{PREFIX}CONFIG"]) if environ.get(f"{PREFIX}CONFIG") else None)
    if named:
        if not named.is_file():
            raise SetupError(f"The settings file {named} does not exist.", recovery="Correct its path.")
        return named
    local = Path("butler.toml")
    return local if local.is_file() else None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise SetupError(f"{path} cannot be read as TOML: {error}", recovery="Correct the file.") from error
    butler = dict(document.pop("butler", {}))
    module = document.pop("modules", {}).get("memory")
    if module is not None:  # the same keys inside a hosting butler
        butler["memory"] = {**butler.get("memory", {}), **module}
    if document:
        key = next(iter(document))
        raise SetupError(
            f"{path}: unknown section [{key}].", recovery="Known sections are [butler] and [modules.memory]."
        )
    return butler


def _apply_environment(environ: Mapping[str, str], butler: dict[str, Any], env: dict[str, Any]) -> None:
    for name, text in environ.items():
        if not name.startswith(PREFIX) or name == f"{PREFIX}CONFIG":
            continue
        rest = name.removeprefix(PREFIX)
        if rest.lower() in Environment.model_fields:
            env[rest.lower()] = parse_offset(text) if rest == "CLOCK_OFFSET" else text
        else:
            keys = _BUTLER_KEYS.get(rest) or ("memory", *rest.lower().split("__"))
            _set_deep(butler, keys, text, name)


def _set_deep(tree: dict[str, Any], keys: tuple[str, ...], text: str, name: str) -> None:
    *path, last = keys
    node: type[BaseModel] = ButlerSettings
    for key in path:
        tree = tree.setdefault(key, {})
        node = _section(node, key, name)
    if last not in node.model_fields:
        raise SetupError(f"The environment variable {name} is unknown.", recovery=_known(node, last))
    try:
        tree[last] = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:  # a bare word is text
        tree[last] = text


def _section(node: type[BaseModel], key: str, name: str) -> type[BaseModel]:
    field = node.model_fields.get(key)
    if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
        raise SetupError(f"The environment variable {name} is unknown.", recovery=_known(node, key))
    return field.annotation


def _validated(model: type[SectionT], values: dict[str, Any], where: str, root: str) -> SectionT:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise SetupError(f"{where}: {_dotted(root, first)}: {_said(first)}.", recovery=_right(model, first)) from None


def _dotted(root: str, error: ErrorDetails) -> str:
    return ".".join(str(part) for part in (root, *error["loc"]) if part)


def _said(error: ErrorDetails) -> str:
    return "unknown key" if error["type"] == "extra_forbidden" else error["msg"].removeprefix("Value error, ")


def _right(model: type[BaseModel], error: ErrorDetails) -> str:
    if error["type"] != "extra_forbidden":
        return "Correct the value; docs/settings.md lists every key with its default."
    *path, last = [str(part) for part in error["loc"]]
    node: type[BaseModel] = model
    for key in path:
        annotation = node.model_fields[key].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        node = annotation
    return _known(node, last)


def _known(node: type[BaseModel], wrong: str) -> str:
    keys = sorted(node.model_fields)
    close = difflib.get_close_matches(wrong, keys, n=1)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return f"{hint}Known keys here: {', '.join(keys)}."
