"""The pure rules of a run: item states, retries, halt clauses. No clock, lock, thread or file."""
