"""The text about the set-up of a repository: a row per step, their tasks in order, then one line."""

import itertools
import json

from tests.cases import each_case

from trainyard.github.setup_step import (
    WIDTH,
    SecretChange,
    SetupChange,
    SetupStep,
    SetupVerdict,
    Todo,
    describe_steps,
    remaining_tasks,
    step_row,
)

VARIABLE = SetupChange("POST", "repos/o/r/actions/variables", {"name": "AWS_REGION"})
SECRET = SecretChange("SLACK_BOT_TOKEN", "production")
LONG = "the default branch takes pushes from everybody, and nobody has to review what is pushed to it"
FINAL = [verdict for verdict in SetupVerdict if verdict is not SetupVerdict.CHANGE]


def step(verdict: SetupVerdict, **more: object) -> SetupStep:
    return SetupStep("branch rules", verdict, "there are none", **more)  # type: ignore[arg-type]


@each_case("verdict", SetupVerdict)
def test_a_row_has_80_columns_and_ends_with_its_verdict(verdict: SetupVerdict) -> None:
    text = step_row(SetupStep("branch rules", verdict, LONG))
    first, *more = text.splitlines()
    assert first.endswith(f" {verdict}")
    assert all(len(line) <= WIDTH for line in [first, *more])
    assert more
    assert all(line.startswith(" " * 18) for line in more)
    words = " ".join(line[18:].removesuffix(verdict).strip() for line in (first, *more))
    assert words == LONG


def test_a_step_without_text_still_has_its_row() -> None:
    assert step_row(SetupStep("secrets", SetupVerdict.OK, "")).split() == ["secrets", "ok"]


def test_the_tasks_are_numbered_over_all_steps_with_their_commands_whole() -> None:
    steps = [
        step(SetupVerdict.OK),
        SetupStep(
            "runner",
            SetupVerdict.YOU,
            "none",
            todo=(
                Todo("on the GPU machine", "scripts/a.sh " + "x" * 90),
                Todo("here", "gh run list", "wait until it is online " * 3),
            ),
        ),
        SetupStep("secrets", SetupVerdict.WAITS, "none", todo=(Todo("in the browser", "https://x"),)),
    ]
    assert remaining_tasks(steps, "github.com", "o/r", dry_run=False).split("\n\n") == [
        "Your remaining steps, in this order:",
        "1. runner: on the GPU machine",
        "scripts/a.sh " + "x" * 90,
        "2. runner: here; wait until it is online wait until it is online wait until it\n   is online",
        "gh run list",
        "3. secrets: in the browser",
        "https://x",
        "1 of 3 steps are checked. Run this again to continue and to check.",
    ]


@each_case("dry_run", [False, True])
@each_case("changes", [(), (VARIABLE,), (VARIABLE, SECRET)])
@each_case("host", ["github.com", "ghe.example.com"])
def test_only_a_dry_run_with_changes_shows_its_calls(
    dry_run: bool, changes: tuple[SetupChange | SecretChange, ...], host: str
) -> None:
    text = remaining_tasks([step(SetupVerdict.WOULD, changes=changes)], host, "o/r", dry_run=dry_run)
    prefix, place = ("", "") if host == "github.com" else (f"GH_HOST={host} ", f"{host}/")
    calls = [
        f"{prefix}gh api --method POST repos/o/r/actions/variables"
        """ --input - <<< '{"name": "AWS_REGION"}'""",
        f"gh secret set SLACK_BOT_TOKEN --env production --repo {place}o/r",
    ][: len(changes)]
    shown = dry_run and changes
    expected = ["A run without --dry-run would make these calls:", "\n".join(calls)] if shown else []
    summary = "0 of 1 steps are checked. Run this again to continue and to check."
    assert text.split("\n\n") == [*expected, summary]


@each_case("pair", list(itertools.combinations_with_replacement(FINAL, 2)))
def test_the_last_line_counts_what_is_checked_and_says_how_to_go_on(
    pair: tuple[SetupVerdict, ...],
) -> None:
    checked = sum(one in (SetupVerdict.OK, SetupVerdict.DONE) for one in pair)
    needed = sum(one is not SetupVerdict.OPTIONAL for one in pair)
    if checked == needed:
        expected = f"All {needed} steps are checked."
    elif {SetupVerdict.REFUSED, SetupVerdict.UNREACHED} & set(pair):
        expected = (
            f"{checked} of {needed} steps are checked. GitHub refused, or could not be reached. Finished"
            " steps are kept: fix the cause and run this again."
        )
    else:
        expected = f"{checked} of {needed} steps are checked. Run this again to continue and to check."
    text = remaining_tasks([step(one) for one in pair], "github.com", "o/r", dry_run=False)
    assert " ".join(text.split()) == expected
    assert all(len(line) <= WIDTH for line in text.splitlines())


@each_case("verdict", FINAL)
def test_the_data_says_what_the_text_says(verdict: SetupVerdict) -> None:
    given = step(verdict, changes=(SECRET,), todo=(Todo("here", "make x", "first"),))
    data = json.loads(json.dumps(describe_steps([given], "github.com", "o/r")))
    assert data == {
        "repository": "o/r",
        "host": "github.com",
        "ready": verdict in (SetupVerdict.OK, SetupVerdict.DONE, SetupVerdict.OPTIONAL),
        "steps": [
            {
                "name": "branch rules",
                "verdict": str(verdict),
                "text": "there are none",
                "calls": ["gh secret set SLACK_BOT_TOKEN --env production --repo o/r"],
                "todo": [{"where": "here", "command": "make x", "note": "first"}],
            }
        ],
    }
