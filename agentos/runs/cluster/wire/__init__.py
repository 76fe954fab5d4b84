"""The protocol between driver and workers: messages, framing, certificates.

One TLS connection per worker process. A worker slot requests an attempt, and only then the driver leases a key for
it; an attempt is sent once. The worker sends a heartbeat three times per time to live; the reply tells for each
attempt whether to go on, finish or stop. A worker without replies stops its attempts before the driver declares them
lost.
"""
