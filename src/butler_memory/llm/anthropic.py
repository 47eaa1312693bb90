"""Anthropic's Messages API: the proposal comes as the arguments of a tool that the model has to call."""

from __future__ import annotations

from anthropic import AsyncAnthropic
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.tools import ToolDefinition

from butler_memory.llm.schema import proposal_schema
from butler_memory.llm.sdk import OUTPUT_NAME, SdkModel
from butler_memory.settings import ConsolidationSettings


def anthropic_model(model: str, key: str, base_url: str, settings: ConsolidationSettings) -> SdkModel:
    client = AsyncAnthropic(api_key=key, base_url=base_url or None, max_retries=0)
    tool = ToolDefinition(
        name=OUTPUT_NAME,
        parameters_json_schema=proposal_schema(),
        description="Hand over what was found. Call it exactly once.",
        kind="output",
    )
    provider = AnthropicModel(model, provider=AnthropicProvider(anthropic_client=client))
    return SdkModel(
        name=f"anthropic:{model}",
        provider=provider,
        output=ModelRequestParameters(output_mode="tool", output_tools=[tool], allow_text_output=False),
        takes_temperature=not provider.profile.get("anthropic_disallows_sampling_settings"),
        timeout_seconds=settings.timeout_seconds,
        max_output_tokens=settings.max_output_tokens,
        close_client=client.close,
    )
