"""Commands as workers: what is run, with which environment, what becomes of its output and its end."""
