"""Finding memories: search, recall, context. Read only, but for what was served and how often."""
