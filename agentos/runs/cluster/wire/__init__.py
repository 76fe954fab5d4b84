"""The protocol between driver and workers: messages, framing, certificates."""
