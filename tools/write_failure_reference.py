#!/usr/bin/env python3
"""Write the runbook of failures, docs/runbooks/failures.md, from the table of causes that `explain` uses.

Reads:  src/trainyard/watch/failure_logs/causes.yaml.
Writes: docs/runbooks/failures.md, below --root.
Exit codes: 0 written, or current already; 1 with --check: it is not current; 2 wrong usage.

Example: tools/write_failure_reference.py --check
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.command import generator, handler

if TYPE_CHECKING:
    from trainyard.watch.failure_logs.evidence_rules import Rule

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
    "installer": "A package could not be installed.",
    "image": "The image lacks something, or is for another processor.",
    "checkpoint": "A file of weights or a checkpoint is damaged.",
    "network": "A name, proxy, certificate or address outside the job failed.",
    "service": "A store, hub, file system or registry was busy or failed.",
    "clock": "The machine's clock is wrong.",
    "runner": "GitHub's runner could not take or run the job.",
    "unknown": "The logs do not show the cause for certain.",
}
"""Classes that a line of a log can name. The others are known from exit codes and records."""
SAID_BY_THE_LINE = "correct what the line names"
_RETRIES = {"no": "no retry", "same": "retry", "other": "retry elsewhere", "later": "retry later"}
_INTRODUCTION = """\
# Failures

<!-- Written by tools/write_failure_reference.py from causes.yaml; edits here are lost. -->

The causes and fixes of [`trainyard explain`](recovery.md#why-it-failed); words in capitals are values of the
log. Only `explain` has errors of a program and of installers, and messages that show what to correct.
In italics: who must act, and whether a retry from a checkpoint recovers (`elsewhere`: on another node only),
for the class and for causes that differ. `not-proven`, `stopped` and `finished`: [recovery](recovery.md).
"""


def main(argv: Sequence[str] | None = None) -> int:
    return generator.run_generator(__doc__, __file__, generated, argv)


def generated() -> dict[Path, str]:
    """Return the content of the runbook, by its path relative to the root."""
    from trainyard.watch.failure_logs.evidence_rules import rules

    by_class: dict[str, list[Rule]] = {}
    for rule in rules():
        by_class.setdefault(str(rule.klass), []).append(rule)
    known = [klass for klass in MEANINGS if klass in by_class]
    sections = (line for klass in known for line in _section(klass, by_class[klass]))
    return {REFERENCE: "\n".join([_INTRODUCTION.rstrip(), *sections, ""])}


def _section(klass: str, found: "Sequence[Rule]") -> Iterator[str]:
    usual = Counter((rule.who, _RETRIES[rule.retry]) for rule in found).most_common(1)[0][0]
    yield from ("", f"## {klass}", "", f"{MEANINGS[klass]} *{', '.join(usual)}*")
    causes: dict[tuple[str, str], list[str]] = {}
    for rule in filter(is_listed, found):
        other = (part for part in (rule.who, _RETRIES[rule.retry]) if part not in usual)
        causes.setdefault((", ".join(other), rule.fix), []).append(rule.cause)
    if causes:
        yield ""
    for action, fix in sorted(causes, key=lambda of: bool(of[0])):
        ending = f" *({action})*" if action else ""
        yield _bullet(f"{'; '.join(_without_variants(causes[action, fix]))}: {fix}", ending)


def is_listed(rule: "Rule") -> bool:
    """Return whether the page has the cause; errors of a program and of installers are left to `explain`."""
    if str(rule.klass) in ("user-code", "installer") or (rule.who, rule.retry) == ("program", "no"):
        return False
    return not rule.is_plain and rule.fix != SAID_BY_THE_LINE and rule.nearness.name != "WORDING"


def _without_variants(causes: Sequence[str]) -> list[str]:
    """Return the causes without a text in parentheses at their end, each one once."""
    return list(dict.fromkeys(re.sub(r" \([^()]*\)$", "", cause) for cause in causes))


def _bullet(text: str, ending: str) -> str:
    text = re.sub(r"\{(\w+)\}", lambda name: name[1].upper(), text)
    return generator.wrap_markdown(f"- {generator.mark_code(text)}{ending}")


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
