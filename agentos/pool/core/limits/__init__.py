"""The arithmetic of limits: how much is left, and when there will be enough."""
