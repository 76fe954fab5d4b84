"""A worker's process that performs one command, to be stopped and continued; what came of it is printed."""

from __future__ import annotations

import sys
import time

from agentos.runs.cluster.wire.secret_digests import SecretDigests
from agentos.runs.cluster.worker.command_runner import WorkerCommandRunner, WorkerEnvironment
from agentos.runs.commands.invocation import Invocation
from agentos.runs.remote.assignment import Assignment
from agentos.runs.remote.pickled import pack, unpack
from agentos.runs.remote.worker_lease import LeaseLoss

TTL = 1.5


def main() -> None:
    script, good_for = sys.argv[1:]
    workshop = WorkerCommandRunner(WorkerEnvironment("run", None, (), None, None, SecretDigests.build([])), TTL)
    order = Invocation(("sh", "-c", script), "item", False, "item", 1, 1, None, {}, None, None, 1.0)
    assignment = Assignment("run", "item", 0, 1, 1, pack(order, "the command"), False)
    lost = LeaseLoss(time.monotonic() + float(good_for))
    report = workshop.run(assignment, lambda _running: None, lambda _stream, _data: None, lost)
    workshop.close()
    assert report.value is not None
    performed = unpack(report.value, "how it went")
    sys.stdout.write(f"{performed.status} {performed.asked_to_end}")


if __name__ == "__main__":
    main()
