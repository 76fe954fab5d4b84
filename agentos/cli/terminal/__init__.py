"""Everything the command prints: progress, item output, tables, colors, redaction of prints."""
