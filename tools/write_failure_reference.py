#!/usr/bin/env python3
"""Write the runbook of failures, docs/runbooks/failures.md, from the table that `explain` uses.

Reads:  src/trainyard/watch/failure_logs/causes.yaml.
Writes: docs/runbooks/failures.md, below --root.
Exit codes: 0 written, or current already; 1 with --check: it is not current; 2 wrong usage.

Example: tools/write_failure_reference.py --check
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import generator

from trainyard.command import handler

REFERENCE = Path("docs/runbooks/failures.md")
MEANINGS = {
    "oom-gpu": "The GPU has too little memory.",
    "oom-host": "The machine or the container has too little memory.",
    "nccl-timeout": "A collective did not end in time.",
    "nccl-error": "NCCL or a connection between ranks failed.",
    "hardware": "A device failed. Take the machine out of service if it fails again.",
    "image-pull": "The image cannot be pulled.",
    "preempted": "The machine or the pod was taken away. The next attempt resumes.",
    "node-lost": "The machine no longer answers.",
    "disk-full": "A disk, its quota or its inodes are used up.",
    "quota": "The account or the cluster allows fewer machines.",
    "unschedulable": "No node fits the pods.",
    "configuration": "A setting, an argument or a manifest is wrong.",
    "user-code": "The program raised an error.",
    "nan": "A loss, a gradient or a weight is not finite.",
    "data-loader": "The data cannot be read.",
    "cuda-mismatch": "Driver, CUDA, torch and extensions do not fit each other.",
    "auth": "A permission, a token or a login is missing or has expired.",
    "hang": "The program stopped making progress.",
    "rendezvous-timeout": "The processes did not find each other in time.",
    "port-in-use": "Another process has the port.",
    "tcp-fallback": "TCP joined machines that have EFA or InfiniBand.",
    "slow-network": "The network between the machines is too slow.",
    "time-limit": "The time limit was reached. The next attempt resumes.",
    "cancelled": "Somebody stopped it.",
    "network": "A name, proxy, certificate or address outside the job failed.",
    "service": "A store, hub, file system or registry was busy or failed.",
    "clock": "The machine's clock is wrong.",
    "runner": "GitHub's runner could not take or run the job.",
    "unknown": "The logs do not show the cause for certain.",
}
_RETRIES = {"no": "no", "same": "yes", "later": "later", "other": "on another node", "once": "once"}
_INTRODUCTION = """\
# Failures

<!-- Written by tools/write_failure_reference.py from causes.yaml; edits here are lost. -->

[`trainyard explain`](recovery.md#why-it-failed) decides from facts first: the exit code, who sent a
signal, the exception that ended the program, what the machine recorded (kills for memory, GPU faults, a full
disk), the conditions of pods and nodes, the end reasons of Slurm, Ray and GitHub. Only where none answers,
the log does. `level` says which: `fact` or `log`. The root error is always shown verbatim.

A retry is right for what would not fail in the same way. An unknown failure is retried once, if steps were
made since the last start; `on another node` means no on a single machine. An unknown error before the first
step is not retried.

## Classes

`retry` lists the answers of the messages that name the class.
"""
_ADVICE = """
## What to do

`trainyard explain` prints the fix if one is known. Each fix was [followed](../benchmarks.md#failures): the
failure was made, the advice done, and the program ended well. For other errors it gives words to search for,
without names of people, places or runs.
"""


def main(argv: Sequence[str] | None = None) -> int:
    return generator.run_generator(__doc__, __file__, generated, argv)


def generated() -> dict[Path, str]:
    """Return the content of the runbook, by its path relative to the root."""
    from trainyard.watch.failure_logs.failure_explanation import table

    retries: dict[str, list[str]] = {klass: [] for klass in MEANINGS}
    for row in table()["rows"]:
        retries[row["class"]].append(_RETRIES[row["retry"]])
    for each in table()["exceptions"]:
        retries[each["class"]].append("no")
    classes = [
        f"| `{klass}` | {MEANINGS[klass]} | {', '.join(dict.fromkeys(found))} |"
        for klass, found in retries.items()
    ]
    lines = ["| class | meaning | retry |", "|---|---|---|", *classes]
    return {REFERENCE: "\n".join([_INTRODUCTION, *lines, _ADVICE])}


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
