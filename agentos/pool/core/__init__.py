"""Which key may be used, by whom, and when: pure state and rules.

Nothing in here reads a clock, takes a lock, starts a thread or does I/O. Facts and ``now`` come in, grants
and instants go out, so that threads, asyncio, a shared store and a simulation obey one rule book.
"""
