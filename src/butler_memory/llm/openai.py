"""Chat completions, by OpenAI or any server that speaks like it (Ollama, vLLM, llama.cpp).

The proposal is asked for as text under a JSON schema: the servers that people run themselves decode under it, whatever
the model was trained for, while tool calls need a model and a template that know them.
"""

from __future__ import annotations

from openai import AsyncOpenAI
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.profiles.openai import OpenAIModelProfile, openai_model_profile
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from butler_memory.llm.schema import proposal_schema
from butler_memory.llm.sdk import OUTPUT_NAME, SdkModel
from butler_memory.settings import ConsolidationSettings

_NO_KEY = "none"  # most local servers want none, and the SDK wants one


def openai_model(model: str, key: str, base_url: str, settings: ConsolidationSettings) -> SdkModel:
    client = AsyncOpenAI(api_key=key or _NO_KEY, base_url=base_url or None, max_retries=0)
    profile = OpenAIModelProfile(supports_json_schema_output=True)
    reasons = bool(openai_model_profile(model).get("openai_supports_reasoning"))
    service: OpenAIProvider | OpenAICompatibleProvider = OpenAIProvider(openai_client=client)
    if base_url:
        service = OpenAICompatibleProvider("openai-compatible", openai_client=client)
        # `max_tokens` is what all servers know; OpenAI's own reasoning models, by way of a proxy, know only the other.
        profile["openai_chat_supports_max_completion_tokens"] = reasons
    schema = OutputObjectDefinition(json_schema=proposal_schema(), name=OUTPUT_NAME, strict=True)
    return SdkModel(
        name=f"openai:{model}",
        provider=OpenAIChatModel(model, provider=service, profile=profile),
        output=ModelRequestParameters(output_mode="native", output_object=schema, allow_text_output=False),
        takes_temperature=not reasons,
        timeout_seconds=settings.timeout_seconds,
        max_output_tokens=settings.max_output_tokens,
        close_client=client.close,
    )
