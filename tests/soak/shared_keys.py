"""The keys that all drivers of a trial share, and how many users each may have at once."""

SECRETS = {"one": "soak-key-one-7f3a91c2", "two": "soak-key-two-b81d04e6"}
SLOTS = {"one": 1, "two": 2}
LEASE_TTL = 3.0
