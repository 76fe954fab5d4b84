"""Configuration files, options, credential entries and durations as people write them."""
