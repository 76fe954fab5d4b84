"""Configuration files, options, credential entries, typed durations."""
