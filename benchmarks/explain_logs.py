#!/usr/bin/env python3
"""Compare `trainyard explain` with labels: class, retry, and whether the deciding fact is shown.

FOLDER has one file a log, and labels.tsv with the columns file, class, retry (yes, no, unknown, or other: on
another node only), and optionally exit (1 if absent), origin (`single`: one machine, where `other` means no)
and fact (words that the shown lines must have). Excerpts of other people's logs are not part of this
repository; explained_threads.tsv has addresses, labels and answers of the last set.

Reads:      FOLDER
Writes:     a line for each wrong answer, and the figures
Exit codes: 0
Example:    benchmarks/explain_logs.py ../logs
"""

import argparse
import csv
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from trainyard.watch.failure_logs.failure_explanation import explain_logs
from trainyard.watch.failure_logs.log_text import log_of

ERROR = re.compile(r"(?:\[rank\d+\]: )?[\w.]*(?:Error|Exception)\b")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(argv).folder
    counts = Counter[str]()
    with (folder / "labels.tsv").open() as file:
        for label in csv.DictReader(file, delimiter="\t"):
            counts.update(judge(label, (folder / label["file"]).read_text()))
    print(", ".join(f"{name} {count}" for name, count in counts.items()))
    return 0


def judge(label: dict[str, str], text: str) -> list[str]:
    """Return what is right about a log, and print what is wrong."""
    found = explain_logs([log_of(label["file"], text)], int(label.get("exit") or 1))
    klass, fact, is_cluster = str(found.klass), label.get("fact") or "", label.get("origin") != "single"
    means_yes = {"yes": True, "no": False, "other": is_cluster}  # unknown: once, so only a no contradicts it
    got, wanted_yes = means_yes.get(found.retry), means_yes.get(label["retry"])
    is_right = got == wanted_yes or (None in (got, wanted_yes) and False not in (got, wanted_yes))
    verdict = "right" if klass == label["class"] else "unsaid" if klass == "unknown" else "wrong"
    if verdict == "wrong" or not is_right:
        wanted = f"{label['class']} {label['retry']}"
        print(f"{label['file']}: wanted {wanted}, got {klass} {found.retry}: {found.evidence[0][:200]}")
    errors = [line for line in text.splitlines() if ERROR.match(line)] or text.strip().splitlines()
    shown = (("baseline", errors[-1:]), ("first line", found.evidence[:1]), ("six lines", found.evidence[:6]))
    facts = [f"fact in {name}" for name, lines in shown if any(fact in line for line in lines)]
    return ["logs", f"class {verdict}", *(["retry right"] if is_right else []), *facts]


if __name__ == "__main__":
    sys.exit(main())
