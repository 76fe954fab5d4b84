"""A worker's process that performs one command, to be stopped and continued; what came of it is printed."""

from __future__ import annotations

import sys
import time

from agentos.runs.cluster.wire.secret_digests import Shadows
from agentos.runs.cluster.worker.command_runner import Surrounding, Workshop
from agentos.runs.commands.invocation import Order
from agentos.runs.remote.assignment import Assignment
from agentos.runs.remote.pickled import pack, unpack
from agentos.runs.remote.worker_lease import Loss

TTL = 1.5


def main() -> None:
    script, good_for = sys.argv[1:]
    workshop = Workshop(Surrounding("run", None, (), None, None, Shadows.of([])), TTL)
    order = Order(("sh", "-c", script), "item", False, "item", 1, 1, None, {}, None, None, 1.0)
    assignment = Assignment("run", "item", 0, 1, 1, pack(order, "the command"), False)
    lost = Loss(time.monotonic() + float(good_for))
    report = workshop.perform(assignment, lambda _running: None, lambda _stream, _data: None, lost)
    workshop.close()
    assert report.value is not None
    performed = unpack(report.value, "how it went")
    sys.stdout.write(f"{performed.status} {performed.asked_to_end}")


if __name__ == "__main__":
    main()
