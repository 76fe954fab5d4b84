"""Twelve questions by the openai SDK over three keys: one is dead, the others are limited, and no question is lost.

Run it with `python examples/sdk_transport.py`; it needs `pip install openai` and no key. The provider is simulated.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx2
from openai import OpenAI

from agentos import Credential, CredentialCoordinator
from agentos.simulator import KeyPlan, Latency, ProviderPlan, QuotaPlan, Simulator, simulated_key

# Each organisation lets in two calls at once and fifty a second, and says when to come again.
ORGANISATIONS = tuple(QuotaPlan(name, rpm=3_000, request_burst=2) for name in ("acme", "globex", "initech"))
PLAN = ProviderPlan(
    ORGANISATIONS,
    tuple(KeyPlan(simulated_key(quota.name), quota.name, dead=quota.name == "acme") for quota in ORGANISATIONS),
    latency=Latency(0.02, 0.0),
    dialect="retry-after",
    retry_after="exact",
)


def main() -> None:
    with Simulator(PLAN) as provider:
        # A real key needs no hosts=: it may go to its own provider. This one has to be told where it may go instead.
        pool = CredentialCoordinator([Credential(secret, slots=4, hosts=["127.0.0.1"]) for secret in provider.keys])
        client = OpenAI(
            api_key="pool",
            base_url=provider.base_url,
            http_client=httpx2.Client(transport=pool.transport()),
            max_retries=0,
        )

        def ask(question: str) -> str:
            answer = client.chat.completions.with_raw_response.create(
                model="gpt-4o-mini", messages=[{"role": "user", "content": question}]
            )
            call = answer.http_response.extensions["agentos"]
            before = f", after {call.waited:.2f}s and {len(call.refusals)} refused before" if call.refusals else ""
            return f"{question} {answer.parse().choices[0].message.content} by {call.credential}{before}"

        with client, ThreadPoolExecutor(6) as threads:
            for line in threads.map(ask, [f"What is {number} squared?" for number in range(1, 13)]):
                print(line)
        seen = provider.statistics().total
    print(f"{seen.ok} answered, {sum(seen.rejected.values())} refused")
    for row in pool.snapshot():
        print(f"{row.name}: {row.state}{f' ({row.why})' if row.why else ''}")


if __name__ == "__main__":
    main()
