"""Agent programs such as claude and codex: how each finds the gateway, reports its outcome and resumes a session."""
