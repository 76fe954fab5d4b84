"""The run that ``agentos demo`` shows, with its provider and its checks."""
