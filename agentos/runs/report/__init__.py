"""Reports on a run from its folder alone: while it is running, after its end, after a crash."""
