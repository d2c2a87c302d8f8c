"""What the processes of a run reported becomes steps, one exception or none, and reasons."""

import ast
import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cases import each_case

from trainyard.programs.observations import OBSERVER, Observations, RunningPython, last_traceback
from trainyard.programs.program_events import parse_event

Line = tuple[int, str, dict[str, Any]]
KERNEL: Line = (1, "loaded", {"script": "ipykernel_launcher", "parents": []})


def observed(*lines: Line) -> Observations:
    """Return what is known after events, each of them as process, name and facts."""
    found = Observations()
    for pid, name, facts in lines:
        event = parse_event(json.dumps({"source": "observed", "pid": pid, "event": name, **facts}).encode())
        assert event is not None, (name, facts)
        found.note(event)
    return found


def loaded(pid: int, *parents: int) -> Line:
    return pid, "loaded", {"script": "train.py", "parents": list(parents)}


def stepped(pid: int, step: int, rank: int = 0) -> Line:
    return pid, "row", {"step": step, "loss": 1.0, "rank": rank}


def raised(pid: int, kind: str = "ValueError") -> Line:
    return pid, "exception", {"type": kind, "message": "bad\nbatch", "place": "train.py:3"}


def ended(pid: int, code: int = 0) -> Line:
    return pid, "exit", {"code": code}


def test_the_exception_that_ended_the_program_is_the_one_that_nobody_survived() -> None:
    """Each case: the events, and the exception after exit code 0 and after another one."""
    two, killed = [loaded(1), loaded(2), stepped(1, 5)], (2, "killed", {"child": 1, "stopped": False})
    own, launchers = "ValueError: bad (train.py:3)", "ChildFailedError: bad (train.py:3)"
    cases: dict[str, tuple[list[Line], str | None, str | None]] = {
        "none": ([loaded(1), stepped(1, 5), ended(1)], None, None),
        "behind a shell": ([loaded(1, 9), stepped(1, 5), raised(1), ended(1)], own, own),
        "before a step": ([loaded(1), raised(1), ended(1)], own, own),
        "its steps come with its end": ([loaded(1), raised(1), (1, "exit", {"step": 5})], own, own),
        "the next cell of a notebook trains": (
            [KERNEL, stepped(1, 5), raised(1), stepped(1, 9), ended(1)], None, None,
        ),
        "the next cell of a notebook saves": (
            [KERNEL, stepped(1, 5), (1, "exception", {**raised(1)[2], "step": 7}), stepped(1, 7)], own, own,
        ),
        "evaluated afterwards": (
            [loaded(1), stepped(1, 5), raised(1), ended(1), loaded(2), ended(2)], own, own,
        ),
        "a helper, and the program continues": (
            [loaded(1), loaded(2, 1), raised(2), ended(2), stepped(1, 5), ended(1)], None, own,
        ),
        "a worker that trained, and a parent that ends well": (
            [loaded(1), loaded(2, 8, 1), stepped(2, 5), raised(2), ended(2), ended(1)], own, own,
        ),
        "a rank beside others": (
            [*(loaded(1), loaded(2), stepped(1, 5), stepped(2, 5, 1), raised(2)), stepped(1, 9), ended(1)],
            own, own,
        ),
        "a trial, and another after it": (
            [loaded(1), loaded(2, 1), stepped(2, 5), raised(2), ended(2), loaded(3, 1), stepped(3, 5)], None,
            own,
        ),
        "a launcher fails with its worker": (
            [
                *(loaded(1), loaded(2, 1), loaded(3, 1), stepped(2, 5), stepped(3, 5, 1)),
                *(raised(3), stepped(2, 6), ended(3), raised(1, "ChildFailedError"), ended(1)),
            ],
            own,
            own,
        ),
        "an exit code behind a shell": ([loaded(1), stepped(1, 5), ended(1, 3)], "SystemExit: 3", None),
        "an exit code that a parent hides": (
            [loaded(1), loaded(2, 1), stepped(2, 5), ended(2, 1), stepped(1, 9), ended(1)], "SystemExit: 1",
            None,
        ),
        "a worker that was killed": ([*two, killed, ended(2)], "killed: train.py", None),
        "a worker that was killed, and another after it": (
            [*two, killed, ended(2), loaded(3), stepped(3, 5)], None, None,
        ),
        "a worker that was stopped": ([*two, (2, "killed", {"child": 1, "stopped": True})], None, None),
        "the exit code of a helper": ([loaded(1), loaded(2, 1), stepped(1, 5), ended(2, 1)], None, None),
        "a script starts it again": (
            [loaded(1), stepped(1, 5), ended(1, 1), loaded(2), stepped(2, 9), ended(2)], None, None,
        ),
        "a launcher fails alone": ([loaded(1), raised(1, "ChildFailedError")], launchers, launchers),
    }  # fmt: skip
    wrong = {}
    for name, (lines, after_zero, after_one) in cases.items():
        found = observed(*lines)
        errors = [found.error(has_failed=has_failed) for has_failed in (False, True)]
        if [error and str(error) for error in errors] != [after_zero, after_one]:
            wrong[name] = errors
    assert wrong == {}


def test_a_process_that_trained_and_was_not_seen_to_end_has_vanished() -> None:
    """Such as one whose SIGKILL a shell hides."""
    two = [loaded(1), loaded(2), stepped(1, 5), stepped(2, 7)]
    ray = (1, "loaded", {"script": "/env/ray/_private/workers/default_worker.py", "parents": []})
    cases: dict[str, tuple[list[Line], str | None]] = {
        "killed": ([loaded(1), stepped(1, 5)], "train.py"),
        "ended": ([loaded(1), stepped(1, 5), ended(1)], None),
        "its helper was killed": ([loaded(1), loaded(2, 1), stepped(1, 5), stepped(2, 2), ended(1)], None),
        "one of two ended": ([loaded(1), loaded(2), stepped(1, 5), stepped(2, 5, 1), ended(2)], None),
        "one of two ranks ended": ([*two, ended(2), (1, "machine", {"world": {"size": 2}})], "train.py"),
        "a worker was stopped": ([*two, (2, "killed", {"child": 1, "stopped": True}), ended(2)], None),
        "started again by a script": ([loaded(1), stepped(1, 5), loaded(2), stepped(2, 9), ended(2)], None),
        "a worker of Ray": ([ray, stepped(1, 5)], None),
        "the kernel of a notebook": ([KERNEL, stepped(1, 5)], None),
        "nothing trained": ([loaded(1)], None),
    }
    assert {name: observed(*lines).vanished for name, (lines, _) in cases.items()} == {
        name: wanted for name, (_, wanted) in cases.items()
    }


def test_weights_that_no_process_changed_are_known_only_from_those_that_trained() -> None:
    def changed(pid: int, value: bool) -> Line:
        return pid, "exit", {"weights_changed": value}

    two = [loaded(1), loaded(2), stepped(1, 5), stepped(2, 3)]
    cases: dict[str, tuple[list[Line], bool | None]] = {
        "not known": ([*two, ended(1)], None),
        "changed": ([*two, changed(1, True)], True),
        "as they were": ([*two, changed(1, False)], False),
        "a probe's": ([*two, changed(2, False)], None),
        "another process's": ([*two, changed(1, False), changed(2, True)], True),
    }
    assert {name: observed(*lines).weights_changed for name, (lines, _) in cases.items()} == {
        name: wanted for name, (_, wanted) in cases.items()
    }


def test_the_facts_of_an_end_are_those_of_the_process_that_trained() -> None:
    facts = {"models": [5], "excerpts": [["0a", "ff"]]}
    found = observed(loaded(1), loaded(2), stepped(1, 9), (1, "exit", facts), (2, "exit", {"models": [1]}))
    assert (found.models, found.excerpts) == ([5], ((b"\x0a", b"\xff"),))
    wrong = {"models": ["x"], "excerpts": [["zz", 1]]}
    found = observed(stepped(1, 9), (1, "exit", wrong))
    assert (found.models, found.excerpts) == ([], None)


def test_steps_rows_and_machine_are_those_of_the_process_that_has_the_most() -> None:
    machines = [(pid, "machine", {"torch": str(pid), "world": {"size": pid}, "rank": 0}) for pid in (1, 2)]
    found = observed(loaded(1), loaded(2, 1), stepped(2, 7), *machines, ended(1))
    assert found.steps == 7 and found.leads(2) and not found.leads(1)
    found.leader = 1
    assert found.leads(1) and not found.leads(2), "it has saved the checkpoint"
    found.leader = None
    assert found.to_json() == {
        "processes": [{"pid": 2, "rank": 0, "script": "train.py", "steps": 7}],
        "world": {"size": 2},
        "machine": {"torch": "2"},
        "unobserved": [],
    }


def test_a_run_without_an_observed_step_says_why() -> None:
    for lines, is_on, reason in (
        ([], True, "no Python reported"),
        ([loaded(1)], True, "no step was seen in a library"),
        ([], False, "program.observe is false"),
    ):
        found = observed(*lines)
        found.close(is_on=is_on)
        assert found.unobserved == [reason]


def test_a_python_that_could_report_and_does_not_is_named_by_the_second_poll() -> None:
    environment = {"TRAINYARD_EVENTS": "x", "PYTHONPATH": f"a:{OBSERVER}"}
    words = ("python", "-m", "pkg.train")
    silent, fork = RunningPython(5, 1, words, environment), RunningPython(6, 2, words, environment)
    found = observed(loaded(2))
    found.check([silent, fork])
    assert found.unobserved == []
    found.check([silent, fork])
    found.check([silent, fork])
    assert found.unobserved == ["pkg.train: its sitecustomize did not run"]


def test_the_observer_runs_in_old_pythons_and_names_nothing_of_a_program() -> None:
    """At its start it imports what every Python has loaded, or what has a private name."""
    tree = ast.parse((OBSERVER / "trainyard_observer.py").read_text(), feature_version=(3, 8))
    names = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert names == {"__future__", "_thread", "atexit", "os", "sys", "time"}
    # An older Python reads the file that starts it: no function has types, no text is formatted.
    begin = ast.walk(ast.parse((OBSERVER / "sitecustomize.py").read_text(), feature_version=(3, 4)))
    assert not [node for node in begin if isinstance(node, ast.FunctionDef | ast.JoinedStr | ast.AnnAssign)]
    assert {path.name for path in OBSERVER.glob("*.py")} == {"sitecustomize.py", "trainyard_observer.py"}


def test_facts_that_are_none_are_left_out() -> None:
    found = observed(
        (1, "loaded", {"script": 7, "parents": "x"}),
        (1, "machine", {"world": 3}),
        (
            1,
            "modules",
            {"files": {"/a.py": "0" * 64, "/b.py": 4}, "installed": {"/s": 5, "/\0": [], "/t": [[1]]}},
        ),
        (1, "exception", {"type": ["x"]}),
    )
    assert found.modules == {"/a.py": "0" * 64}
    assert str(found.error(has_failed=True)) == "an exception"


def test_a_traceback_counts_where_it_is_the_last_output() -> None:
    def traceback(line: str, before: str = "") -> str:
        return (
            f"step 1 loss 2\n{before}Traceback (most recent call last):\n"
            f'  File "/a/run.py", line 9, in <module>\n  File "/a/train.py", line 12, in f\n    g()\n{line}'
        )

    cases = {
        traceback("ValueError: bad batch\n"): "ValueError: bad batch (train.py:12)",
        traceback("KeyError: 'x'\n\n"): "KeyError: 'x' (train.py:12)",
        traceback("AssertionError"): "AssertionError (train.py:12)",
        traceback("torch.AcceleratorError: CUDA error: misaligned\nFor debugging pass X=1\n"): (
            "torch.AcceleratorError: CUDA error: misaligned (train.py:12)"
        ),
        traceback("ValueError: bad batch\nstep 2 loss 1\n"): None,
        traceback("ValueError: x\n", before="Exception ignored in: <function f>\n"): None,
        "step 1 loss 2\n": None,
        "": None,
        "Traceback (most recent call last):\n": None,
    }
    assert {text: found and str(found) for text in cases if (found := last_traceback(text)) or True} == cases


def observer_module() -> Any:
    spec = importlib.util.spec_from_file_location("observer", OBSERVER / "trainyard_observer.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class RefusedError(Exception):
    """What a client of a service raises."""

    def __init__(self, response: object) -> None:
        super().__init__("refused")
        self.response = response


class Answer:
    status_code = 503


# name: (the exception that was handled, the one that was raised, whether `from` links them, cause, code)
CHAINS: dict[str, tuple[Exception | None, Exception, bool, str, str]] = {
    "alone": (None, ValueError("x"), False, "", ""),
    "a full disk": (OSError(28, "full"), ValueError("x"), True, "OSError: [Errno 28] full", "[Errno 28]"),
    "while handling it": (OSError(5, "bad"), ValueError("x"), False, "OSError: [Errno 5] bad", "[Errno 5]"),
    "a fallback": (KeyError("x"), OSError(5, "bad"), False, "", "[Errno 5]"),
    "requests": (RefusedError(Answer()), ValueError("x"), True, "RefusedError: refused", "HTTP 503"),
    "botocore": (None, RefusedError({"Error": {"Code": "SlowDown"}}), False, "", "(SlowDown) when calling"),
}  # fmt: skip


@each_case("name", CHAINS)
def test_the_cause_of_an_exception_and_its_code_are_reported(name: str) -> None:
    first, last, is_linked, cause, code = CHAINS[name]
    setattr(last, "__cause__" if is_linked else "__context__", first)
    found, *texts = observer_module().find_cause(last)
    assert (found, texts) == (first if cause else last, [cause, code])


def test_a_module_is_certain_that_was_not_edited_since_its_import_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observer, path = object.__new__(observer_module().Observer), tmp_path / "helper.py"
    path.write_text("")
    edited_at = path.stat().st_mtime
    monkeypatch.setitem(sys.modules, "helper", SimpleNamespace(__file__=str(path)))
    told: list[dict[str, Any]] = []
    for moment, edited in ((edited_at + 1, []), (edited_at - 1, [str(path)])):
        known = {"_modules": {}, "_edited": [], "_noted": set(), "_sought": {"helper": moment}, "_began": 0.0}
        known |= {"_main_file": "", "_root": str(tmp_path), "_rank": lambda: 0}
        vars(observer).update(known, report=lambda _, **facts: told.append(facts))
        known |= {"_early": {"hypothesis"}, "_installed": {}}
        vars(observer).update(known)
        observer._note_modules()
        names = told[-1]["installed"][str(Path(pytest.__file__).parents[1])]
        assert "pytest" in names and {"hypothesis", "sys", "trainyard"}.isdisjoint(names)
        assert (told[-1]["files"].keys(), told[-1]["edited"]) == ({str(path)}, edited)


def test_a_file_that_stays_open_costs_few_descriptors(tmp_path: Path) -> None:
    observer = object.__new__(observer_module().Observer)
    vars(observer).update(_open=[], report=lambda _, **facts: None)
    before = len([*Path("/proc/self/fd").iterdir()])
    with (tmp_path / "features.pt").open("wb") as file:
        for _ in range(400):
            observer._note_save("torch.save", file, 0, {})
        assert len([*Path("/proc/self/fd").iterdir()]) < before + 150
    observer._report_closed()
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_a_training_of_a_second_has_rows_up_to_its_end() -> None:
    module, steps = observer_module(), list[int]()
    observer: Any = object.__new__(module.Observer)  # without its hooks
    known: dict[str, Any] = {"_bad": None, "_loss": 1.0, "_rows": [], "_open": [], "_sites": {}}
    known |= {"_has_machine": True, "_weights": module.Weights(None), "_imported": 0}
    vars(observer).update(known, _row_time=float("inf"), _begin_row=lambda: steps.append(observer.step))
    for observer.step in range(1, 1001):
        observer._note_step(0.1, 1)
    assert steps[:99] == list(range(1, 100)) and 200 < len(steps) < 300
    assert min(steps[-len(steps) // 10 :]) > 650
