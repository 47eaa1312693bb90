"""A prompt becomes a validated proposal here, and nowhere else.

    ports        what the rest of the house may ask of a model, and how it may fail
    choose       the model that the settings name
    reading      what a model said, as a proposal or as what is wrong with it; pure
    schema       the proposal's shape as models are shown it
    anthropic    Anthropic's Messages API             } by `sdk`, on pydantic-ai: optional extras
    openai       chat completions of anybody          }
    claude_code  the `claude` CLI, headless, in a `bounded` process
    scripted     says what it was told to: for tests and demos

Neither importing this package nor `model_of` imports an SDK; the first reading does (`lazy`).
"""

from butler_memory.llm.choose import model_of
from butler_memory.llm.ports import BackendDown, Bad, BadOutput, Down, Model, Prompt, Reply, Usage
from butler_memory.llm.scripted import ScriptedModel

__all__ = [
    "BackendDown",
    "Bad",
    "BadOutput",
    "Down",
    "Model",
    "Prompt",
    "Reply",
    "ScriptedModel",
    "Usage",
    "model_of",
]
