"""The public API as a type checker sees it. Checked by mypy, never run."""

from typing import assert_type

from agentos import Credential, CredentialCoordinator, CredentialState, Lease, Limit, Secret

pool = CredentialCoordinator(["secret", Credential("other", rpm=500, labels={"tier": "paid"})], keep_free=1)
assert_type(pool.acquire("me", timeout=1.5, cost={"tokens": 5}, labels=["paid"]), Lease)
assert_type(pool.reserve(), str | None)
assert_type(pool.snapshot(), list[CredentialState])
assert_type(pool.get_stats(), dict[str, int])
assert_type(Limit("tokens", 5, per="day").largest, float)

with pool.lease(priority=3) as lease:
    assert_type(lease, Lease)
    assert_type(lease.secret, Secret)
    assert_type(lease.reveal(), str)
    assert_type(lease.settle(input_tokens=3, output_tokens=4), bool)
    assert_type(lease.rate_limited("30"), bool)


async def in_a_loop() -> None:
    async with pool.lease(model="gpt-4o") as lease:
        assert_type(lease.name, str)
    assert_type(await pool.acquire_async(affinity="conversation"), Lease)
