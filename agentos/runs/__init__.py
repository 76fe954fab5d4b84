"""Items in, results out, nothing lost."""
