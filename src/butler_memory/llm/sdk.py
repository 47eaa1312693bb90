"""One reading by a model behind pydantic-ai, whichever provider: ask, judge, once more with what was wrong, or fail.

Needs an extra; only `anthropic` and `openai` of this package import it, and they only when their backend is chosen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic_ai import exceptions as errors
from pydantic_ai.direct import model_request
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model as ProviderModel
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from butler_memory.domain.proposal import Proposal
from butler_memory.llm.ports import NOTHING_USED, BackendDown, Bad, BadOutput, Down, Prompt, Reply, Usage
from butler_memory.llm.reading import Fault, judge, judge_value

log = logging.getLogger(__name__)

OUTPUT_NAME = "proposal"
# What a model can mend when it is told. What was cut would be cut again, and who refused has been asked.
_CAN_BE_MENDED = {Bad.NOT_JSON, Bad.SCHEMA}
_TOO_LARGE = 413
# A filter stopped it, and the provider says so in a refusal of the request. It would stop it again; half may pass.
_FILTERED_CODES = {"content_filter", "content_policy_violation", "invalid_prompt"}
_FILTERED_PHRASE = "content filtering policy"

# The first that fits; subclasses before their bases.
_REASONS: tuple[tuple[type[errors.ModelAPIError], Down | Bad], ...] = (
    (errors.ModelContextWindowExceededError, Bad.TOO_LONG),
    (errors.ModelAuthenticationError, Down.BAD_KEY),
    (errors.ModelQuotaExceededError, Down.SPENT_BUDGET),
    (errors.ModelRateLimitError, Down.RATE_LIMITED),
    (errors.ModelUnavailableError, Down.OVERLOADED),
    (errors.ModelServerError, Down.OVERLOADED),
    (errors.ModelTimeoutError, Down.TIMEOUT),
    (errors.ModelRequestTimeout, Down.TIMEOUT),
    (errors.ModelConnectionError, Down.NO_NETWORK),
    (errors.ModelNotFoundError, Down.UNKNOWN_MODEL),
    (errors.ModelRequestRejectedError, Down.REJECTED),
)


@dataclass(frozen=True)
class _Failed:
    reason: Down | Bad
    retry_after: float | None = None


@dataclass(frozen=True)
class SdkModel:
    name: str
    provider: ProviderModel[Any]
    output: ModelRequestParameters
    takes_temperature: bool  # models that think refuse one
    timeout_seconds: float
    max_output_tokens: int
    close_client: Callable[[], Awaitable[None]]

    async def propose(self, prompt: Prompt) -> Reply:
        history: list[ModelMessage] = [
            ModelRequest(parts=[UserPromptPart(prompt.text)], instructions=prompt.instructions)
        ]
        used = NOTHING_USED
        while True:
            started = time.perf_counter()
            response = await self._ask(history)
            used += Usage(seconds=time.perf_counter() - started)
            if isinstance(response, _Failed):
                raise _failure(response, used)
            used += Usage(response.usage.input_tokens, response.usage.output_tokens)
            judged = _judged(response)
            if isinstance(judged, Proposal):
                return Reply(judged, used)
            if judged.reason not in _CAN_BE_MENDED or len(history) > 1:
                raise BadOutput(judged.reason, used)
            history += [response, _correction(response, judged, prompt.instructions)]

    async def close(self) -> None:
        await self.close_client()

    async def _ask(self, history: list[ModelMessage]) -> ModelResponse | _Failed:
        # No retries in the SDK: the scheduler above knows when to try again, and may stop in between.
        settings = ModelSettings(
            max_tokens=self.max_output_tokens,
            thinking=False,  # or as little as the model allows: it would use up the output, and rule out a forced tool
            request_timeout=self.timeout_seconds,
            timeout=self.timeout_seconds,
            max_retries=0,
        )
        if self.takes_temperature:
            settings["temperature"] = 0.0
        try:
            return await model_request(
                self.provider, history, model_settings=settings, model_request_parameters=self.output
            )
        except errors.ModelAPIError as error:
            return _Failed(_reason(error), error.retry_after)
        except Exception as error:  # noqa: BLE001  whatever went wrong in there, its message may quote the prompt
            log.warning("%s: the SDK failed with %s", self.name, type(error).__name__)
            return _Failed(Down.BROKEN)


def _reason(error: errors.ModelAPIError) -> Down | Bad:
    if isinstance(error, errors.ModelHTTPError) and error.status_code == _TOO_LARGE:
        return Bad.TOO_LONG
    reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), Down.BROKEN)
    filtered = error.provider_error_code in _FILTERED_CODES or _FILTERED_PHRASE in str(error.body)
    return Bad.REFUSED if reason is Down.REJECTED and filtered else reason


def _failure(failed: _Failed, used: Usage) -> BackendDown | BadOutput:
    """Made and raised outside of `except`: as a context, the SDK's error would show in a logged traceback."""
    if isinstance(failed.reason, Bad):
        return BadOutput(failed.reason, used)
    return BackendDown(failed.reason, used, failed.retry_after)


def _judged(response: ModelResponse) -> Proposal | Fault:
    if response.finish_reason == "length":
        return Fault(Bad.TRUNCATED)
    if response.finish_reason == "content_filter":
        return Fault(Bad.REFUSED)
    calls = response.tool_calls
    if len(calls) > 1:
        return Fault(Bad.NOT_JSON, f"Call '{OUTPUT_NAME}' exactly once.")
    if not calls:
        return judge(response.text or "")
    given = calls[0].args
    return judge(given or "") if isinstance(given, str) or given is None else judge_value(given)


def _correction(response: ModelResponse, fault: Fault, instructions: str) -> ModelRequest:
    wrong = f"That could not be used.\n{fault.complaint}\nGive the whole corrected answer, and nothing else."
    calls = response.tool_calls
    if not calls:
        return ModelRequest(parts=[UserPromptPart(wrong)], instructions=instructions)
    answers = [ToolReturnPart(call.tool_name, wrong, call.tool_call_id, outcome="retried") for call in calls]
    return ModelRequest(parts=answers, instructions=instructions)
