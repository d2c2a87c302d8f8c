"""The table of situations: who starts x on which machine x after what x with what changed."""

from itertools import product

from trainyard.run.situation import Answer, Inputs, Recorded, Situation, decide, differences

# Who starts -> whether the folder or the id is named by it, and on a machine that has nothing of the run:
# whether the store may have the id, and whether this start is known to be of that run.
STARTS = {
    "a new folder each time, a first attempt of the action": (False, False, False),
    "a second attempt of the action": (False, True, True),
    "--run-dir, a first segment, a new build, a trial of a sweep": (True, False, False),
    "TRAINYARD_RUN_ID": (True, True, False),
    "--resume and the number, a next segment, a build with RUN_ID, a pod that returns": (True, True, True),
}
AFTER = {
    "success": Recorded("r", "k", "succeeded", 0),
    "success without a recorded exit code": Recorded("r", "k", "succeeded"),
    "failure": Recorded("r", "k", "failed", 1),
    "stop": Recorded("r", "k", "stopped", 75),
    "kill": Recorded("r", "k"),
}
SAME = Inputs(
    "python a.py", "c1", {"training.max_steps": 50, "program.command": ["a"]}, "a" * 40, "clean", "l", "d"
)
CHANGES: dict[str, tuple[Inputs, str]] = {
    "commit": (Inputs(**{**vars(SAME), "commit": "b" * 40}), "commit: aaaaaaaaaaaa, now bbbbbbbbbbbb"),
    "tree": (Inputs(**{**vars(SAME), "tree": "e" * 64}), "working tree: clean, now changed (eeeeeeeeeeee)"),
    "lock": (Inputs(**{**vars(SAME), "lock": "m"}), "lock: l, now m"),
    "no lock": (Inputs(**{**vars(SAME), "lock": None}), "lock: l, now none"),
    "data": (Inputs(**{**vars(SAME), "data": "f"}), "data: d, now f"),
    "command": (
        Inputs(**{**vars(SAME), "command": "python b.py", "command_sha256": "c2"}),
        "command: python a.py, now python b.py",
    ),
    "configuration": (
        Inputs(**{**vars(SAME), "configuration": {"training.max_steps": 60}}),
        "training.max_steps: 50, now 60",
    ),
}


def expected_here(after: str, change: str | None, *, is_fixed: bool) -> Answer:
    """The table on the same machine, where the record of the run is."""
    if change is not None:
        return Answer.REFUSE if after == "success" and is_fixed else Answer.BESIDE
    return Answer.DONE if after == "success" else Answer.CONTINUE


def test_every_situation_has_its_answer() -> None:
    wrong = []
    for (start, (is_fixed, in_store, may_adopt)), after, change in product(
        STARTS.items(), AFTER, (None, *CHANGES)
    ):
        now = SAME if change is None else CHANGES[change][0]
        found = differences(SAME, now)
        here = Situation(AFTER[after], found, "k", is_fixed=is_fixed, may_adopt=may_adopt)
        if decide(here) is not expected_here(after, change, is_fixed=is_fixed):
            wrong.append((start, "same machine", after, change, decide(here)))
        fresh = Situation(stored_key="k" if in_store else None, is_fixed=is_fixed, may_adopt=may_adopt)
        expected = Answer.START if not in_store else Answer.ADOPT if may_adopt else Answer.REFUSE
        if decide(fresh) is not expected:
            wrong.append((start, "fresh machine", after, change, decide(fresh)))
        # The folder was copied, or made anew, and the store's run of this id is another one.
        strange = Situation(AFTER[after], (), "another", is_fixed=is_fixed, may_adopt=may_adopt)
        if decide(strange) is not Answer.REFUSE:
            wrong.append((start, "another key in the store", after, change, decide(strange)))
    assert not wrong


def test_each_difference_is_named_with_both_values_and_equal_inputs_have_none() -> None:
    assert differences(SAME, SAME) == ()
    wrong = {
        name: found for name, (now, said) in CHANGES.items() if (found := differences(SAME, now)) != (said,)
    }
    assert not wrong
