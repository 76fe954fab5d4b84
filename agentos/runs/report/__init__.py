"""What can be told of a run from its folder alone, by whoever looks: while it is on, after it, after a crash."""
