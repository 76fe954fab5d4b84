"""The pool's rules on records that other processes change as well.

The pool chooses a key on its view of the store and requests it (``Store.try_grant``). The store checks the request
again on current records in one step, and refuses it if the slot or the limit is gone or another process is first in
the fair queue. Releases, settlements and cooldowns are submitted without waiting: a busy store executes them with its
next step. The process that frees a slot determines the next waiting process in the same step and wakes it.
"""
