"""Pure: what becomes of an item. No clock, lock, thread or file."""
