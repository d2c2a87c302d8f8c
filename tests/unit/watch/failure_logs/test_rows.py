"""The rows of causes.yaml: what they decide, in which words, and that healthy documents decide nothing."""

import re
from pathlib import Path

from trainyard.watch.failure_logs.failure_explanation import explain_logs, rows, table
from trainyard.watch.failure_logs.log_text import log_of

HERE = Path(__file__).parent
MOST_ROWS = 75
ANSWERS = {"no": "no", "same": "yes", "later": "yes", "other": "other", "once": "unknown"}


def healthy() -> dict[str, str]:
    """Return the healthy documents by their names."""
    parts = (HERE / "healthy.txt").read_text().split("=== ")[1:]
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}


def decided(text: str) -> tuple[str, str]:
    found = explain_logs([log_of("train.log", text)])
    return str(found.klass), found.retry


def test_each_row_decides_its_example_alone_and_within_a_log() -> None:
    wrong = []
    for row in table()["rows"]:
        before = f"{row['after'].split('|')[0].replace(chr(92), '')}\n" if "after" in row else ""
        before = "HTTP Error 429 thrown while requesting\n" if before.startswith("HTTP") else before
        for begin, end in (("", ""), ("starting\nstep 1 loss 2.0\n", "\n[W120 x.cpp:1] bye\n")):
            found = decided(begin + before + row["example"] + end)
            if found != (row["class"], ANSWERS[row["retry"]]):
                wrong.append(f"{row['example']}: {found}")
    assert not wrong, "\n".join(wrong)
    assert len(rows()) <= MOST_ROWS, "which recorded fact would answer it?"


def test_another_wording_of_a_cause_decides_the_same_or_nothing() -> None:
    wrong, cases = [], (HERE / "wordings.txt").read_text().splitlines()
    for case in cases:
        expected, _, text = case.partition("|")
        klass, retry = expected.split()
        found = decided(text.replace("\\n", "\n"))
        if found[0] not in (klass, "unknown") or found[1] not in (ANSWERS[retry], "unknown"):
            wrong.append(f"{case}: {found}")
    assert not wrong, "\n".join(wrong)
    assert len(cases) >= 3 * len(rows())


def test_healthy_documents_decide_nothing() -> None:
    wrong = [
        f"{name}: {found}"
        for name, text in healthy().items()
        if (found := decided(text)) != ("unknown", "unknown")
    ]
    assert not wrong, "\n".join(wrong)
    assert len(healthy()) >= 50


def test_a_healthy_document_never_takes_the_place_of_the_cause() -> None:
    wrong, documents = [], healthy()
    for row in table()["rows"]:
        if "after" in row or "ends" in row:
            continue
        for name, text in documents.items():
            if "step 4/600" in text:
                continue  # steps after a line show that it did not end the training
            for log in (f"{text}{row['example']}", f"{row['example']}\n{text}"):
                found = decided(log)
                if found[0] not in (row["class"], "unknown"):
                    wrong.append(f"{row['class']} beside {name}: {found}")
    assert not wrong, "\n".join(wrong)


def test_each_advice_fills_its_names_from_the_error() -> None:
    advice = table()["advice"]
    assert 20 <= len(advice) <= 45 and all(each["fix"] and each["responsible"] for each in advice)
    assert not [
        each["fix"]
        for each in advice
        if set(re.findall(r"\{(\w+)\}", each["fix"])) - set(re.compile(each["match"]).groupindex)
    ]
    found = explain_logs([log_of("log", "ModuleNotFoundError: No module named 'apex'")], 1)
    assert (found.fix, found.responsible) == ("install apex: add it to the lock or the image", "image")
