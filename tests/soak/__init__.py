"""Long random trials of whole processes, behind ``make soak``: too slow for ``make test``, and never named test_*."""
