"""Output of commands: capture, item logs, line buffering, redaction."""
