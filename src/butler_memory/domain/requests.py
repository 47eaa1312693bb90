"""What callers may ask for, checked at once and completely, before anything is read or written (T4).

One model per question. The fronts publish these models' JSON schemas and hand over raw arguments; `parse`
turns every failure into our error shape without repeating what was sent.
"""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self, TypeVar
from uuid import NAMESPACE_URL, UUID, uuid5

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from butler_memory.domain.kinds import MemoryType, Permanence, SearchMode, SourceKind, Standing, Tier
from butler_memory.domain.text import key
from butler_memory.domain.tiers import TYPES_OF
from butler_memory.errors import InvalidInput, TooLarge

CONTENT_BYTES = 32 * 1024
METADATA_BYTES = 16 * 1024
QUERY_BYTES = 8 * 1024
REASON_BYTES = 2 * 1024
METADATA_DEPTH = 32  # every reader and writer of JSON below us may recurse
NAME_CHARS = 200  # subject and predicate
# Both are part of a b-tree key of at most 2,704 bytes, and one character may become 18 when normalised.
KEY_BYTES = 4 * NAME_CHARS
TAGS, TAG_CHARS = 32, 64
BATCH_ITEMS = 200
BATCH_CONTEXTS = 50
ID_CHARS = 200

SCOPE = re.compile(r"^(global|\*|[a-z0-9][a-z0-9_-]{0,62}|project:[a-z0-9][a-z0-9._-]{0,62})\Z")
_INVISIBLE = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})  # controls, zero-width characters, spaces


def _clean_text(text: str) -> str:
    if "\x00" in text:
        raise PydanticCustomError("bad_text", "must not contain NUL characters")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise PydanticCustomError("bad_text", "must be valid Unicode (it has a lone surrogate)") from None
    return text


def _not_blank(text: str) -> str:
    if all(unicodedata.category(c) in _INVISIBLE for c in text):
        raise PydanticCustomError("blank", "must not be empty")
    return text


def _within(limit: int) -> AfterValidator:
    def check(text: str) -> str:
        if len(text.encode("utf-8")) > limit:
            raise PydanticCustomError("too_large", "is over the limit of {limit} bytes", {"limit": limit})
        return text

    return AfterValidator(check)


def _short_key(text: str) -> str:
    if len(key(text).encode("utf-8")) > KEY_BYTES:
        raise PydanticCustomError("too_large", "is over the limit of {limit} bytes", {"limit": KEY_BYTES})
    return text


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("bad_number", "must be a number, not true or false")
    return value


def _json_text(value: Any) -> Any:
    """Models often send lists and objects as JSON text; take them at their word."""
    if isinstance(value, str) and value.strip()[:1] in "[{" and value.strip():
        try:
            return json.loads(value)
        except RecursionError:
            raise PydanticCustomError("too_large", "is nested too deeply") from None
        except ValueError:
            return value
    return value


def _offset_time(value: Any) -> Any:
    if isinstance(value, datetime):
        moment = value
    elif isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            raise PydanticCustomError("bad_time", "must be a time like 2026-03-01T09:30:00Z") from None
    else:
        raise PydanticCustomError("bad_time", "must be a time like 2026-03-01T09:30:00Z")
    if moment.tzinfo is None:
        raise PydanticCustomError("bad_time", "needs an offset, like 2026-03-01T09:30:00Z or +02:00")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError("bad_time", "is out of range") from None


def _scope(text: str) -> str:
    if not SCOPE.match(text):
        raise PydanticCustomError("bad_scope", "must be 'global', a butler's name or 'project:<slug>' (lower case)")
    return text


def _plain_json(value: dict[str, Any]) -> dict[str, Any]:
    _check_leaves(value)
    try:
        size = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8"))
    except ValueError:  # NaN, Infinity, or an integer too long to print
        raise PydanticCustomError("bad_metadata", "must hold finite numbers of ordinary length") from None
    if size > METADATA_BYTES:
        raise PydanticCustomError("too_large", "is over the limit of {limit} bytes", {"limit": METADATA_BYTES})
    return value


def _check_leaves(value: Any) -> None:
    """Level by level instead of by recursion: the input decides how deep it is."""
    level = [value]
    for _ in range(METADATA_DEPTH):
        deeper: list[Any] = []
        for item in level:
            match item:
                case str():
                    _clean_text(item)
                case dict():
                    deeper += [*map(_text_key, item), *item.values()]
                case list() | tuple():
                    deeper += item
                case None | bool() | int() | float():
                    continue
                case _:
                    raise PydanticCustomError("bad_metadata", "must be plain JSON")
        level = deeper
        if len(level) > METADATA_BYTES:
            raise PydanticCustomError("too_large", "is over the limit of {limit} bytes", {"limit": METADATA_BYTES})
    if level:
        raise PydanticCustomError("too_large", "is nested over {limit} levels deep", {"limit": METADATA_DEPTH})


def _text_key(name: Any) -> str:
    if not isinstance(name, str):
        raise PydanticCustomError("bad_metadata", "must have text as keys")
    return name


def _not_history(kind: MemoryType) -> MemoryType:
    if kind is MemoryType.EPISODE:
        raise PydanticCustomError("bad_type", "must be 'fact' or 'rule': an episode is history")
    return kind


def _unique_tags(tags: list[str]) -> list[str]:
    if len(tags) > TAGS:
        raise PydanticCustomError("too_large", "has more than {limit} tags", {"limit": TAGS})
    return list(dict.fromkeys(tag.strip() for tag in tags))


Text = Annotated[str, AfterValidator(_clean_text)]
Content = Annotated[Text, AfterValidator(_not_blank), _within(CONTENT_BYTES)]
# Of the short ones the length is checked first, so that nothing after it works on megabytes.
Name = Annotated[
    str,
    Field(max_length=NAME_CHARS),
    AfterValidator(_clean_text),
    AfterValidator(_not_blank),
    AfterValidator(_short_key),
]
Tag = Annotated[str, Field(max_length=TAG_CHARS), AfterValidator(_clean_text), AfterValidator(_not_blank)]
Tags = Annotated[list[Tag], BeforeValidator(_json_text), AfterValidator(_unique_tags)]
Metadata = Annotated[dict[str, Any], BeforeValidator(_json_text), AfterValidator(_plain_json)]
When = Annotated[datetime, BeforeValidator(_offset_time), WithJsonSchema({"type": "string", "format": "date-time"})]
Scope = Annotated[Text, AfterValidator(_scope)]
Importance = Annotated[float, BeforeValidator(_no_bool), Field(ge=1, le=10, allow_inf_nan=False)]
Confidence = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, le=1, allow_inf_nan=False)]
Reason = Annotated[Text, AfterValidator(_not_blank), _within(REASON_BYTES)]
CallerId = Annotated[str, Field(max_length=ID_CHARS), AfterValidator(_clean_text), AfterValidator(_not_blank)]
Learned = Annotated[MemoryType, AfterValidator(_not_history), WithJsonSchema({"enum": ["fact", "rule"]})]
MemoryId = Annotated[UUID, WithJsonSchema({"type": "string", "format": "uuid"})]


class RequestContext(BaseModel):
    """The caller's lineage: kept on rows and events, and returned (T2)."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    request_id: CallerId | None = None
    subrequest_id: CallerId | None = None
    segment_id: CallerId | None = None
    session_id: CallerId | None = None

    def given(self) -> dict[str, str]:
        return self.model_dump(exclude_none=True)


def _lineage_schema() -> dict[str, Any]:
    return {"type": "object", "description": "request_id, subrequest_id, segment_id, session_id"}


Lineage = Annotated[RequestContext, BeforeValidator(_json_text), WithJsonSchema(_lineage_schema())]


class Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    request_context: Lineage = RequestContext()

    @model_validator(mode="before")
    @classmethod
    def _null_is_omitted(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            return {name: value for name, value in values.items() if value is not None}
        return values

    def gave(self, field: str) -> bool:
        """Did the caller say it, or is it a default?"""
        return field in self.model_fields_set


class StoreEpisode(Request):
    content: Content
    butler: Scope | None = None
    session_id: CallerId | None = None
    importance: Importance = 5.0
    occurred_at: When | None = None
    source_kind: SourceKind = SourceKind.AGENT_INFERRED
    tags: Tags = []
    metadata: Metadata = {}
    idempotency_key: CallerId | None = None

    @property
    def session(self) -> str | None:
        return self.session_id or self.request_context.session_id


class StoreFact(Request):
    subject: Name
    predicate: Name
    content: Content
    importance: Importance = 5.0
    permanence: Permanence = Permanence.STANDARD
    scope: Scope | None = None
    tags: Tags = []
    confidence: Confidence = 1.0
    source_kind: SourceKind = SourceKind.AGENT_INFERRED
    valid_from: When | None = None
    valid_to: When | None = None
    metadata: Metadata = {}
    idempotency_key: CallerId | None = None

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> Self:
        if self.valid_from and self.valid_to and self.valid_to < self.valid_from:
            raise PydanticCustomError("bad_range", "must not be before valid_from", {"field": "valid_to"})
        return self


class StoreRule(Request):
    content: Content
    scope: Scope | None = None
    tags: Tags = []
    importance: Importance = 5.0
    permanence: Permanence = Permanence.STANDARD
    confidence: Confidence = 0.5
    source_kind: SourceKind = SourceKind.AGENT_INFERRED
    metadata: Metadata = {}
    idempotency_key: CallerId | None = None


class StoreMemory(Request):
    """A note for a tier: in eden an episode, otherwise a fact (J4)."""

    content: Content
    tags: Tags = []
    tier: Tier = Tier.EDEN


def _listed(limit: int) -> Any:
    """A list whose items are checked one by one, so that a bad one does not spoil the rest."""

    def check(items: list[Any]) -> list[Any]:
        if not items:
            raise PydanticCustomError("blank", "must not be empty")
        if len(items) > limit:
            raise PydanticCustomError("too_large", "has more than {limit} items", {"limit": limit})
        return items

    schema = {"type": "array", "items": {"type": "object"}, "maxItems": limit}
    return Annotated[list[Any], BeforeValidator(_json_text), AfterValidator(check), WithJsonSchema(schema)]


class IngestBatch(Request):
    episodes: _listed(BATCH_ITEMS)  # type: ignore[valid-type]


class OneMemory(Request):
    """Names one memory: get, confirm, forget."""

    type: MemoryType
    id: MemoryId


class ConfirmMemory(OneMemory):
    type: Learned


class RestoreMemory(OneMemory):
    replace: bool = False


class EditMemory(Request):
    """A person's correction by id: new text makes a new row, other attributes change in place."""

    type: Learned
    id: MemoryId
    content: Content | None = None
    importance: Importance | None = None
    permanence: Permanence | None = None
    tags: Tags | None = None
    valid_from: When | None = None
    valid_to: When | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.model_fields_set - {"type", "id", "request_context"}:
            raise PydanticCustomError("blank", "give at least one of content, importance, permanence, tags")
        if self.type is MemoryType.RULE and (self.valid_from or self.valid_to):
            given = "valid_from" if self.valid_from else "valid_to"
            raise PydanticCustomError("bad_range", "is for facts: rules are not dated", {"field": given})
        if self.valid_from and self.valid_to and self.valid_to < self.valid_from:
            raise PydanticCustomError("bad_range", "must not be before valid_from", {"field": "valid_to"})
        return self


class MarkRule(Request):
    """One application of a rule. `reason` is for a harmful one: it becomes part of the warning."""

    rule_id: MemoryId
    reason: Reason | None = None


class SetStanding(Request):
    """What a person decides about a rule."""

    rule_id: MemoryId
    standing: Standing


class Stats(Request):
    scope: Scope | None = None


LONGEST_CURSOR = 18  # digits that a bigint surely holds


def _cursor(value: Any) -> Any:
    """Models send a number as text, or text as a number."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > LONGEST_CURSOR:
        raise PydanticCustomError("bad_cursor", "must be the 'next' of an earlier answer")
    return int(text)


Cursor = Annotated[int, BeforeValidator(_cursor), WithJsonSchema({"type": "string"})]


class StreamActivity(Request):
    """What happened after `since`; without it, the latest."""

    since: Cursor | None = None
    scope: Scope | None = None
    limit: Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=200)] = 50


def _not_none(types: list[MemoryType]) -> list[MemoryType]:
    if not types:
        raise PydanticCustomError("blank", "must name at least one of episode, fact, rule")
    return list(dict.fromkeys(types))


def _browse(query: str) -> str:
    return query.strip()


Query = Annotated[Text, _within(QUERY_BYTES), AfterValidator(_browse)]
Limit = Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=200)]
MinConfidence = Annotated[float, BeforeValidator(_no_bool), Field(ge=0, le=1, allow_inf_nan=False)]
Types = Annotated[list[MemoryType], BeforeValidator(_json_text), AfterValidator(_not_none)]


class SearchMemories(Request):
    """A question, filters, or both; filters alone browse, newest first."""

    query: Query = ""
    types: Types = list(MemoryType)
    scope: Scope | None = None
    tier: Tier | None = None
    mode: SearchMode | None = None
    limit: Limit | None = None
    min_confidence: MinConfidence | None = None
    tags: Tags = []
    predicate: Name | None = None
    subject: Name | None = None
    since: When | None = None
    until: When | None = None
    valid_at: When | None = None
    order: Literal["relevance", "composite"] = "relevance"
    explain: bool = False

    @model_validator(mode="after")
    def _fact_filters_are_for_facts(self) -> Self:
        given = next((name for name in ("subject", "predicate", "valid_at") if self.gave(name)), None)
        if given and MemoryType.FACT not in self.types:
            raise PydanticCustomError("bad_filter", "is for facts: add 'fact' to types", {"field": given})
        return self

    @model_validator(mode="after")
    def _tier_has_these_types(self) -> Self:
        if self.tier and not set(TYPES_OF[self.tier]) & set(self.types):
            named = ", ".join(TYPES_OF[self.tier])
            raise PydanticCustomError(
                "bad_filter", "holds {types}: none of the given types", {"field": "tier", "types": named}
            )
        if self.tier is Tier.EDEN and (self.subject or self.predicate or self.valid_at):
            raise PydanticCustomError("bad_filter", "must not be eden with a filter for facts", {"field": "tier"})
        return self


class RecallMemories(Request):
    topic: Annotated[Query, AfterValidator(_not_blank)]
    scope: Scope | None = None
    limit: Limit | None = None
    min_confidence: MinConfidence | None = None
    explain: bool = False


TokenBudget = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=100_000)]


def readable_prompt(value: Any) -> Any:
    """Whatever a session starts with: what no database takes (NUL, halves of characters) becomes U+FFFD."""
    if not isinstance(value, str):
        return value
    whole = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return whole.replace("\x00", "\ufffd")


class BuildContext(Request):
    """An empty prompt is a session's start; one of any length and any text works (C6, C9)."""

    trigger_prompt: Annotated[str, BeforeValidator(readable_prompt), AfterValidator(str.strip)] = ""
    butler: Scope | None = None
    token_budget: TokenBudget | None = None


class BuildContexts(Request):
    requests: _listed(BATCH_CONTEXTS)  # type: ignore[valid-type]


RequestT = TypeVar("RequestT", bound=BaseModel)

# A session named by something else than a UUID gets one derived from its name.
_SESSION_NAMESPACE = uuid5(NAMESPACE_URL, "butler-memory:session")


def session_uuid(name: str) -> UUID:
    try:
        return UUID(name)
    except ValueError:
        return uuid5(_SESSION_NAMESPACE, name)


def parse(model: type[RequestT], arguments: Mapping[str, Any]) -> RequestT:
    """The request, or InvalidInput naming the field and what would be right; never the value sent."""
    try:
        return model.model_validate(dict(arguments))
    except ValidationError as error:
        raise _translated(model, error.errors(include_input=False, include_url=False)[0]) from None


def _translated(model: type[BaseModel], error: ErrorDetails) -> InvalidInput:
    field = error.get("ctx", {}).get("field") or _known_path(model, error["loc"])
    kind = error["type"]
    if kind == "extra_forbidden":
        return InvalidInput(_unknown(model, error["loc"]), field="", reason="unknown_argument")
    if kind == "missing":
        return InvalidInput(f"'{field}' is required.", field=field, reason="missing")
    said = _said(error)
    if kind in {"too_large", "string_too_long"}:
        return TooLarge(f"'{field}' {said}.", field=field, reason="too_large")
    return InvalidInput(f"'{field}' {said}." if field else f"{said[:1].upper()}{said[1:]}.", field=field, reason=kind)


def _known_path(model: type[BaseModel], where: tuple[int | str, ...]) -> str:
    """Only names that we gave ourselves: deeper parts of a location may be keys that were sent."""
    names = {*model.model_fields, *RequestContext.model_fields}
    return ".".join(part for part in where if isinstance(part, str) and part in names)


def _unknown(model: type[BaseModel], where: tuple[int | str, ...]) -> str:
    known = sorted(model.model_fields) if len(where) == 1 else sorted(RequestContext.model_fields)
    close = difflib.get_close_matches(str(where[-1])[:NAME_CHARS], known, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return f"There is an unknown argument.{hint} Known arguments: {', '.join(known)}."


def _said(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "enum" | "literal_error":
            return f"must be one of {context['expected']}"
        case "string_too_long":
            return f"is longer than {context['max_length']} characters"
        case "uuid_parsing" | "uuid_type":
            return "must be a UUID, as returned by a store, search or recall call"
        case "dict_type" | "model_type":
            return "must be an object"
        case "string_unicode":
            return "must be valid Unicode"
        case _ if error["msg"].startswith("Input should be"):
            return error["msg"].replace("Input should be", "must be").split(",")[0]
        case _:
            return error["msg"]
