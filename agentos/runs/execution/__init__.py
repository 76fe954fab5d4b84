"""One run from its first item to its last: dispatching, timers, error policy, shutdown."""
