"""Long-term memory for a fleet of LLM agents."""

__version__ = "0.1.0"
