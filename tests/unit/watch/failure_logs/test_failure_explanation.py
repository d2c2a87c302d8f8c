# ruff: noqa: E501 - a line of a log is as long as it is
"""Why a training ended: facts before logs, the root error verbatim, whether a retry recovers; and each row of causes.yaml."""

import re
import time
from pathlib import Path

import pytest
from tests.cases import each_case

from trainyard.watch.failure_classes import FailureClass
from trainyard.watch.failure_logs.failure_explanation import (
    FailureFacts,
    LogExplanation,
    explain_logs,
    rows,
    search_phrase,
    table,
)
from trainyard.watch.failure_logs.log_text import events_of, log_of

WATCHDOG = (
    "[rank0]:[E1218 20:27:21.426415540 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=131072000, Timeout(ms)=600000) ran for 600081 "
    "milliseconds before timing out."
)
CHILDREN = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 4242)
============================================================"""
KILLED_RANK = CHILDREN.replace(": 1 (pid", ": -9 (pid")
REMOTE = (
    "[rank3]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting."
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."
FULL = "OSError: [Errno 28] No space left on device: '/mnt/step-500'"
FROM = "\n\nThe above exception was the direct cause of the following exception:\n\n"
DURING = "\n\nDuring handling of the above exception, another exception occurred:\n\n"


def trace(error: str, prefix: str = "", library: bool = False) -> str:
    frames = ['  File "train.py", line 88, in <module>', "    main()"]
    if library:
        frames.append('  File "/venv/lib/python3.12/site-packages/a/b.py", line 7, in f')
    return "\n".join(prefix + line for line in ("Traceback (most recent call last):", *frames, error))


def steps(first: int, last: int) -> str:
    return "\n".join(f"21:45:{n:02d} INFO  step {n}/600 loss 2.871" for n in range(first, last + 1))


def explained(text: str, exit_code: int | None = None, **facts: object) -> LogExplanation:
    return explain_logs([log_of("train.log", text)], facts=FailureFacts(exit_code, **facts))  # type: ignore[arg-type]


# name: (log, facts, class, retry, level, the root error begins with)
ENDS: dict[str, tuple[str, dict[str, object], str, str, str, str]] = {
    "it succeeded": (OOM, {"exit_code": 0}, "finished", "no", "fact", ""),
    "it stopped with a checkpoint": (WATCHDOG, {"exit_code": 75}, "stopped", "yes", "fact", ""),
    "it failed although its code is 75": (trace(OOM), {"exit_code": 75}, "oom-gpu", "no", "log", "torch.OutOf"),
    "ctrl-c": ("", {"exit_code": 130}, "cancelled", "no", "fact", ""),
    "no such command": ("", {"exit_code": 127}, "configuration", "no", "fact", ""),
    "killed": (steps(1, 9), {"exit_code": 137}, "unknown", "unknown", "", ""),
    "killed by its cgroup": (
        steps(1, 9),
        {"exit_code": 137, "system": ["oom_kill event: the kernel ended 1 processes of this cgroup"]},
        "oom-host", "no", "fact", "oom_kill event",
    ),
    "a GPU failed": (
        trace("RuntimeError: CUDA error: unspecified launch failure"),
        {"exit_code": 1, "system": ["NVRM: Xid (PCI:0000:44:00): 79, pid=1, GPU has fallen off the bus."]},
        "hardware", "other", "fact", "RuntimeError: CUDA error",
    ),
    "the disk is full and torch does not say so": (
        trace("RuntimeError: File out/1.pt cannot be opened.", library=True),
        {"exit_code": 1, "system": ["No space left on the disk of /runs: 0.0 MB free"]},
        "disk-full", "no", "fact", "RuntimeError: File out/1.pt",
    ),
    "an observed exception": (
        "loss 2.8",
        {"exit_code": 1, "exception": "builtins.TypeError: f() takes 1 argument", "place": "train.py:12"},
        "user-code", "no", "fact", "builtins.TypeError: f() takes 1 argument (train.py:12)",
    ),
    "an observed exception of a rank": (
        "", {"exit_code": 1, "exception": "KeyError: 'labels'", "rank": 2}, "user-code", "no", "fact", "rank 2: KeyError",
    ),
    "a report of what happened elsewhere": (
        "torch.distributed.DistError: it ended", {"exit_code": 1, "steps": 9}, "unknown", "unknown", "", "torch.distributed.DistError: it",
    ),
    "an observed exception of one that lost a peer": (
        trace("KeyError: 'labels'", "[rank2]: "),
        {"exit_code": 1, "exception": "torch.distributed.DistBackendError: NCCL error"},
        "user-code", "no", "log", "rank 2: KeyError: 'labels' (train.py:88)",
    ),
    "an exception that nobody knows, before the first step": (
        trace("MyError: gave up"), {"exit_code": 1}, "unknown", "no", "log", "MyError: gave up (train.py:88)",
    ),
    "an exception that nobody knows, after steps": (
        trace("MyError: gave up"), {"exit_code": 1, "steps": 9}, "unknown", "unknown", "", "MyError: gave up",
    ),
    "what only the program can repair, after steps": (
        trace("RuntimeError: stack expects each tensor to be equal size, but got [3] at entry 0", library=True),
        {"exit_code": 1, "steps": 9}, "unknown", "no", "log", "RuntimeError: stack",
    ),
    "a mistake, after steps": (trace("TypeError: x"), {"exit_code": 1, "steps": 9}, "user-code", "no", "log", "TypeError"),
    "a mistake in a library's code": (
        trace("TypeError: x", library=True), {"exit_code": 1}, "unknown", "no", "log", "TypeError: x (train.py:88)",
    ),
    "a tool's error": ("ERROR: frobnicator 7 gave up", {"exit_code": 1}, "unknown", "no", "log", "ERROR: frob"),
    "a tool's error before a kill": ("ERROR: frobnicator 7 gave up", {"exit_code": 137}, "unknown", "unknown", "", "ERROR"),
    "no word, by itself": ("bye", {"exit_code": 3}, "unknown", "no", "fact", ""),
    "no word, after steps": ("bye", {"exit_code": 3, "steps": 4}, "unknown", "unknown", "", ""),
    "torchrun's rank was killed": (KILLED_RANK, {"exit_code": 1}, "unknown", "unknown", "", "exitcode  : -9"),
    "a rank was killed, and another lost it": (
        f"{trace('RuntimeError: Connection reset by peer', '[rank0]: ')}\n{KILLED_RANK}",
        {"exit_code": 1, "memory_kills": 0}, "unknown", "yes", "fact", "exitcode  : -9",
    ),
    "a rank was killed, and not for memory": (KILLED_RANK, {"exit_code": 1, "memory_kills": 0}, "unknown", "yes", "fact", "exitcode  : -9"),
    "killed, and not for memory": ("", {"exit_code": 137, "memory_kills": 0}, "unknown", "yes", "fact", ""),
    "its crash follows its exception": (trace(OOM), {"exit_code": 134}, "oom-gpu", "no", "log", "torch.OutOf"),
    "a busy service, by its code": (
        trace("MyHubError: x"), {"exit_code": 1, "exception": "MyHubError: x", "code": "HTTP 503", "steps": 9},
        "service", "yes", "fact", "MyHubError: x",
    ),
    "a full disk below the exception, by its code": (
        trace("ValueError: save"), {"exit_code": 1, "exception": "OSError: x", "code": "[Errno 28]"}, "disk-full", "no", "fact", "OSError: x",
    ),
    "cancelled by somebody or something": ("Error: The operation was canceled.", {"exit_code": 1}, "unknown", "unknown", "", "Error: The operation"),
    "a launcher hands on the signal of a rank": ("", {"exit_code": 249}, "data-loader", "no", "fact", ""),
    "it crashed before its first step": ("", {"exit_code": 245, "steps": 0}, "unknown", "no", "fact", ""),
    "it crashed, and no record of steps": ("", {"exit_code": 245}, "unknown", "unknown", "", ""),
    "a step is not on record but in the log": (f"{steps(7, 7)}\n{trace('MyError: x')}", {"exit_code": 1}, "unknown", "unknown", "", "MyError"),
    "it crashed after steps": ("", {"exit_code": 139, "steps": 4}, "unknown", "unknown", "", ""),
    "a lost peer's report": ("torch.distributed.DistError: x\nexits with return code = -11", {"exit_code": 1, "steps": 0}, "unknown", "no", "fact", "exits with"),
    "a launcher's report alone": (CHILDREN.partition("\n")[0], {"exit_code": 1}, "unknown", "unknown", "", ""),
    "the ranks were asked to end": ("W0408 06:28:49.5 1300 api.py:719] Received 15 death signal, shutting down", {"exit_code": 1}, "unknown", "unknown", "", "W0408"),
    "NCCL's own warning above its error": (
        f"n1:7:9 [0] NCCL WARN Could not find NET with id 0\n{trace('RuntimeError: NCCL error in: x, internal error')}",
        {"exit_code": 1}, "unknown", "no", "log", "n1:7:9 [0] NCCL WARN Could not",
    ),
}  # fmt: skip


@each_case("name", ENDS)
def test_facts_decide_first_then_the_log(name: str) -> None:
    log, facts, klass, retry, level, root = ENDS[name]
    found = explained(log, **facts)  # type: ignore[arg-type]
    assert (str(found.klass), found.retry, found.level) == (klass, retry, level), found
    assert found.root.startswith(root) and bool(found.root) == bool(root), found.root
    assert found.record()["retryable"] is (retry == "yes")
    assert found.failure()["class"] == klass


# name: (log, the root error begins with, class)
ROOTS = {
    "one rank failed, the others lost it": (
        f"{steps(1, 2)}\n{trace('KeyError: 1', '[rank2]: ')}\n{REMOTE}\n{WATCHDOG}\n{CHILDREN}", "rank 2: KeyError: 1", "user-code",
    ),
    "the others speak first": (f"{REMOTE}\n{WATCHDOG}\n{trace(OOM, '[rank1]: ')}\n{CHILDREN}", "rank 1: torch.OutOf", "oom-gpu"),
    "the deepest cause": (trace(FULL) + FROM + trace("ValueError: save"), "OSError: [Errno 28]", "disk-full"),
    "what was met while handling it": (trace("MemoryError") + DURING + trace("RuntimeError: pos"), "MemoryError", "oom-host"),
    "what failed after a fallback": (trace("KeyError: 'x'") + DURING + trace(OOM), "torch.OutOf", "oom-gpu"),
    "the exception in a loader's worker": (
        trace("ValueError: Caught ValueError in DataLoader worker process 0.")
        + '\nOriginal Traceback (most recent call last):\n  File "data.py", line 7, in get\n    f()\nValueError: bad sample 7',
        "ValueError: bad sample 7", "unknown",
    ),
    "the exception in torchrun's report": (
        CHILDREN + '\n  traceback : Traceback (most recent call last):\n    File "train.py", line 3, in main\n'
        "      f()\n    TypeError: f() missing 1 argument", "TypeError: f()", "user-code",
    ),
    "what an exception after a lost peer follows": (f"{REMOTE}\n{trace('MyTrainerError: giving up', '[rank3]: ')}", "rank 3: ncclRemote", "nccl-error"),
    "the cause before a kill": (f"{FULL}\n{WATCHDOG}\nKilled", "OSError", "disk-full"),
    "the limit, not the ending before it": (
        "srun: error: n1: task 0: Killed\nslurmstepd: error: *** STEP 4.0 ON n1 CANCELLED AT 2026 DUE TO TIME LIMIT ***",
        "slurmstepd", "time-limit",
    ),
    "glued to a progress bar": (f"Epoch 1:  52%|█████▏    | 312/600 [01:02<00:58]{OOM}", "Epoch 1", "oom-gpu"),
    "stamped by kubectl": (trace(OOM, "2026-11-20T12:00:00.123Z "), "torch.OutOf", "oom-gpu"),
    "drawn by rich": ('│ /w/train.py:88 in main │\nTypeError: x', "TypeError: x", "user-code"),
    "native code": ("terminate called after throwing an instance of 'x'\n  what():  CUDA error: device-side assert triggered", "what", "user-code"),
    "after a problem that was survived": (f"upload: SlowDown (503)\n{trace('KeyError: 1')}", "KeyError", "user-code"),
}  # fmt: skip


@each_case("name", ROOTS)
def test_the_root_error_is_shown_verbatim(name: str) -> None:
    text, root, klass = ROOTS[name]
    found = explained(f"\x1b[32mstarted\x1b[0m\r\n{text}", 1)
    assert found.root.startswith(root) and str(found.klass) == klass, found
    verbatim = root.removeprefix(root.partition("rank ")[1] and root[:8])
    assert found.evidence[0].startswith("train.log:") and verbatim in found.evidence[0]
    assert len(found.evidence) <= 6


@each_case(
    "text",
    [
        f"{OOM}\nretrying\n{steps(1, 9)}",
        f"Exception ignored in: <function A.__del__ at 0x7f>\n{trace(OOM)}",
        'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    log.error("CUDA out of memory")',
        "{",
        "\x00\xff" * 50,
        "",
    ],
)
def test_what_did_not_end_the_training_is_no_evidence(text: str) -> None:
    assert explained(text).klass is FailureClass.UNKNOWN


def test_of_several_logs_the_first_in_time_decides_beyond_the_error_of_clocks() -> None:
    late = log_of("a", f"2026-11-20T12:01:30.5Z {OOM}")
    for stamp, klass in (("12:01:28", "unknown"), ("12:01:00", "disk-full")):
        found = explain_logs([late, log_of("b", f"2026-11-20T{stamp}.25Z {FULL}")])
        assert (str(found.klass), found.retryable) == (klass, False)
    assert (
        explain_logs([log_of(f"r{n}", REMOTE) for n in range(3)] + [log_of("x", trace(OOM))]).klass
        == "oom-gpu"
    )


def test_an_exception_did_not_end_a_process_that_a_signal_ended() -> None:
    text = trace("ValueError: metrics could not be sent")
    assert explained(text, 1).retry == "no"
    assert explained(text, 137).retry == "unknown"
    for code in (1, 137, -9):
        assert explained(OOM, code).klass is FailureClass.GPU_MEMORY, "a row decides in any case"


def test_the_events_of_a_run_are_read_as_lines() -> None:
    lines = '{"event": "started"}\n{"event": "hang_suspected", "step": 3}\n'
    assert explain_logs([events_of("events.jsonl", lines)]).klass is FailureClass.HANG


@pytest.mark.parametrize(
    ("line", "phrase"),
    [
        (
            "RuntimeError: CUDA error: invalid device ordinal",
            "RuntimeError: CUDA error: invalid device ordinal",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file: '/home/ann/data/x.bin'",
            "FileNotFoundError: [Errno … ] No such file",
        ),
        ("HTTPError: 404 Client Error for url: https://x.org/ann/y", "HTTPError … Client Error for url"),
        ("ann@gpu-17.example.org: job 81237 failed at 0x7f01", "job … failed at"),
    ],
)
def test_the_search_phrase_has_no_names_of_people_places_or_runs(line: str, phrase: str) -> None:
    assert search_phrase(line) == phrase


def test_long_lines_and_many_lines_are_read_in_a_moment() -> None:
    begun = time.process_time()
    explained("x" * 1_000_000 + "\n" + "Xid " * 100_000 + "\n" + " step 1" * 100_000)
    explained(
        "\n".join(word * 3_000 for word in ("errors ", "if a, ", "no with ", "ECC (", "0 x ", "sample: "))
    )
    explained("if no a, b, with the " * 900 + "CUDA out of memory")
    explained("\n".join(f"step {n} loss 2.5 grad_norm 1.2 failed 0" for n in range(20_000)))
    assert time.process_time() - begun < 60


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


@pytest.mark.slow
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
