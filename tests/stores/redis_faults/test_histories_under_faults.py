"""Histories stay correct while connections break in every way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ...redis_server import RedisServer
from ...tcp_proxy import Afterwards, TcpProxy
from ..histories import History, l1_by_store_order, linearizable, read
from ..pool_processes import Family, eventually, trials
from ..store_observer import RedisWitness, until_granted
from .fault_scenario import let_pass

PROCESSES = 5
TTL = 0.6
GROUPS = ["one", "two"]
CREDENTIALS = [
    {"name": f"key-{number}", "slots": 1 + number // 2, "labels": [GROUPS[number % 2]]} for number in range(4)
]
SLOTS = {str(each["name"]): int(str(each["slots"])) for each in CREDENTIALS}
FAULTS = ["cut", "silent", "no requests", "no replies", "reset", "swallowed", "hung"]
EACH = 3


class Trouble:
    """Breaks connections at random, one process at a time, and counts what it did."""

    def __init__(self, proxies: list[TcpProxy], server: RedisServer, seed: int) -> None:
        self._proxies = proxies
        self._server = server
        self._dice = random.Random(seed)
        self.done: Counter[str] = Counter()

    def make(self) -> None:
        """Everything that can happen, so many times each, in any order."""
        faults = FAULTS * EACH
        self._dice.shuffle(faults)
        for what in faults:
            self._happen(what)

    def _happen(self, what: str) -> None:
        proxy = self._dice.choice(self._proxies)
        length = self._dice.choice([0.0, 0.02, 0.05, 0.3 * TTL, 1.2 * TTL] if what != "hung" else [0.02, 0.3 * TTL])
        if what in ("reset", "swallowed"):
            proxy.lose_reply(b"EVALSHA", Afterwards.RESET if what == "reset" else Afterwards.SILENT)
            self.done[what] += proxy.reply_lost.wait(TTL)
            return
        if what == "hung":
            self._server.pause()
            let_pass(length)
            self._server.go_on()
        else:
            if what == "cut":
                proxy.cut()
            else:
                proxy.silence(requests=what != "no replies", replies=what != "no requests")
            let_pass(length)
            proxy.heal()
        self.done[what] += 1


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[RedisWitness]:
    witness = RedisWitness(tmp_path)
    yield witness
    witness.close()


@pytest.mark.parametrize("seed", range(trials(1)))
def test_whatever_happens_to_connections_every_answer_is_one_that_a_correct_store_could_have_given(
    processes: Family, witness: RedisWitness, seed: int
) -> None:
    children = processes.children(PROCESSES)
    with ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy(witness.server.port)) for _ in children]
        for child, proxy in zip(children, proxies, strict=True):
            child.do("open", url=witness.url(proxy), credentials=CREDENTIALS, lease_ttl=TTL)
        witness.watch()
        enough = witness.folder / "enough"
        files = [witness.folder / f"process-{number}.jsonl" for number in range(PROCESSES)]
        for number, (child, file) in enumerate(zip(children, files, strict=True)):
            told = {"record": str(file), "label": f"process-{number}", "seed": seed, "until": str(enough)}
            child.tell("live", groups=GROUPS, **told)
        trouble = Trouble(proxies, witness.server, seed)

        trouble.make()
        until_granted(witness, witness.granted() + 100)  # it goes on, though not of every lease the answer was heard
        enough.touch()
        counts: Counter[str] = Counter()
        for child in children:
            counts.update(child.answer().got)
        eventually(lambda: witness.in_force() == 0)

    assert trouble.done.keys() == set(FAULTS)
    assert counts["granted"] >= 50
    assert counts["put off"] > 0
    assert l1_by_store_order(witness.order(), SLOTS) is None
    history = History(read(files).operations, witness.due())
    verdicts = {name: linearizable(part, SLOTS[name]) for name, part in history.by_credential().items()}
    assert verdicts == dict.fromkeys(SLOTS)
