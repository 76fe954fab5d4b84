"""The scenarios of ``bench/drain.py`` in virtual time: ``python bench/drain_virtual.py [--seconds 12] [--seed 11]``.

Over real HTTP a busy machine decides as much as the pool does. Here the cores of pool and run meet the simulator's
rules, and nothing else: the same every time, in seconds. The restart is left out, since nothing is killed here. A
latency is part of the least time, so that short scenarios lose a good part of theirs at the beginning and at the end.
"""

from __future__ import annotations

import argparse

from drain_scenarios import SCENARIOS, Scenario, scenario

from agentos.simulator import lower_bound
from agentos.simulator.virtual import Finished, VirtualRun, Work, build_key_specs

LONGEST = 10  # times the least time; a run that takes longer is stopped


def drained(found: Scenario, seed: int) -> Finished:
    """Drain a scenario with the present pool."""
    specs = build_key_specs(found.plan, slots=1 if found.exclusive else "auto", known=found.known)
    run = VirtualRun(found.plan, [Work(1)] * found.calls, specs=specs, parallel=found.parallel, seed=seed)
    return run.run(until=LONGEST * found.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Drain simulated providers in virtual time.")
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS, default=[n for n in SCENARIOS if n != "restart"])
    parser.add_argument("--seconds", type=float, default=60.0, help="the least a scenario can take; 60 unless told")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--repeats", type=int, default=2, help="each on a seed of its own; 2 unless told")
    options = parser.parse_args()
    print(f"scenarios of {options.seconds:g} s, seeds {options.seed} to {options.seed + options.repeats - 1}")
    print(f"{'':16}{'efficiency':>12}{'worst':>8}{'rejected/ok':>13}{'worst':>8}  target")
    for name in options.scenario:
        rows, targets = [], None
        for seed in range(options.seed, options.seed + options.repeats):
            found = scenario(name, seed, options.seconds)
            targets = found.targets
            ended = drained(found, seed)
            least = lower_bound(found.plan, found.calls, parallel=found.parallel).seconds
            rows.append((least / ended.seconds, ended.rejected / max(1, ended.done), ended.unfinished + ended.failed))
        efficiency, rejected, lost = zip(*rows, strict=True)
        mean, often = sum(efficiency) / len(rows), sum(rejected) / len(rows)
        asked = f"{targets.efficiency:g} / {targets.rejected:g}" if targets is not None else ""
        line = f"{name:16}{mean:>12.3f}{min(efficiency):>8.3f}{often:>13.4f}{max(rejected):>8.4f}  {asked}"
        print(f"{line}{f'  lost {sum(lost)}' if any(lost) else ''}")


if __name__ == "__main__":
    main()
