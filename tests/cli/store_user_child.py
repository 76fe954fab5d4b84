"""A process that uses a store: ``python -m tests.cli.store_user_child STORE``. It holds alice, and waits for bob."""

from __future__ import annotations

import sys

from agentos import Credential, CredentialCoordinator


def main() -> None:
    pool = CredentialCoordinator(
        [
            Credential("planted-secret-of-alice", name="alice", labels=["a"]),
            Credential("planted-secret-of-bob", name="bob", labels=["b"], quota="acme", rpm=60),
        ],
        store=sys.argv[1],
    )
    with pool.lease("item-7", labels=["a"]):
        with pool.lease(labels=["b"]) as lease:
            lease.rate_limited(600)
        _say("ready")
        with pool.lease("item-8", labels=["b"], timeout=40):
            _say("got bob")
            sys.stdin.read()
    pool.close()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
