"""The butler host: starts agents that use the memory. Its rooms come with a later release."""
