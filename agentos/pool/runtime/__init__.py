"""The pool for threads and tasks: it waits, wakes and renews around the pure rules of ``pool.core``."""
