"""The gateway of the command: of one run, and by itself."""
