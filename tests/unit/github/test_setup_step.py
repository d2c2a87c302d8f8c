"""The text about the set-up of a repository: a row per step, their tasks in order, then one line."""

import json

from tests.cases import each_case

from trainyard.github.setup_step import (
    FINISHED,
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


def step(verdict: SetupVerdict, **more: object) -> SetupStep:
    return SetupStep("branch rules", verdict, LONG, **more)  # type: ignore[arg-type]


@each_case("verdict", SetupVerdict)
def test_a_row_has_80_columns_and_ends_with_its_verdict(verdict: SetupVerdict) -> None:
    first, *more = step_row(step(verdict)).splitlines()
    assert first.endswith(f" {verdict}") and more
    assert all(len(line) <= WIDTH for line in [first, *more])
    words = " ".join(line[18:].removesuffix(verdict).strip() for line in (first, *more))
    assert words == LONG


def test_the_tasks_are_numbered_over_all_steps_with_their_commands_whole() -> None:
    here = Todo("here", "gh run list", "wait until it is online " * 3)
    steps = [
        step(SetupVerdict.OK),
        SetupStep("runner", SetupVerdict.YOU, "none", todo=(Todo("on the GPU machine", "x" * 99), here)),
        SetupStep("secrets", SetupVerdict.WAITS, "none", todo=(Todo("in the browser", "https://x"),)),
    ]
    assert remaining_tasks(steps, "github.com", "o/r", dry_run=False).split("\n\n") == [
        "Your remaining steps, in this order:",
        "1. runner: on the GPU machine",
        "x" * 99,
        "2. runner: here; wait until it is online wait until it is online wait until it\n   is online",
        "gh run list",
        "3. secrets: in the browser",
        "https://x",
        "1 of 3 steps are checked. Run this again to continue and to check.",
    ]


@each_case(("host", "prefix", "place"), [("github.com", "", ""), ("ghe.org", "GH_HOST=ghe.org ", "ghe.org/")])
def test_only_a_dry_run_shows_its_calls(host: str, prefix: str, place: str) -> None:
    steps = [step(SetupVerdict.WOULD, changes=(VARIABLE, SECRET))]
    summary = "0 of 1 steps are checked. Run this again to continue and to check."
    assert remaining_tasks(steps, host, "o/r", dry_run=False) == summary
    api = f"{prefix}gh api --method POST repos/o/r/actions/variables"
    calls = [
        f"""{api} --input - <<< '{{"name": "AWS_REGION"}}'""",
        f"gh secret set SLACK_BOT_TOKEN --env production --repo {place}o/r",
    ]
    shown = ["A run without --dry-run would make these calls:", "\n".join(calls), summary]
    assert remaining_tasks(steps, host, "o/r", dry_run=True).split("\n\n") == shown


@each_case("verdict", SetupVerdict)
def test_the_last_line_and_the_data_say_what_is_checked(verdict: SetupVerdict) -> None:
    given = step(verdict, changes=(SECRET,), todo=(Todo("here", "make x", "first"),))
    steps = [step(SetupVerdict.OK), given]
    last = " ".join(remaining_tasks(steps, "github.com", "o/r", dry_run=False).split("\n\n")[-1].split())
    is_done = verdict in FINISHED
    assert last.startswith("All 2 steps" if is_done else "1 of 2 steps are checked.")
    is_failed = verdict in (SetupVerdict.REFUSED, SetupVerdict.UNREACHED)
    assert ("Finished steps are kept" in last) is is_failed
    data = json.loads(json.dumps(describe_steps([given], "github.com", "o/r")))
    assert (data["repository"], data["host"], data["ready"]) == ("o/r", "github.com", is_done)
    assert data["steps"] == [
        {
            "name": "branch rules",
            "verdict": str(verdict),
            "text": LONG,
            "calls": ["gh secret set SLACK_BOT_TOKEN --env production --repo o/r"],
            "todo": [{"where": "here", "command": "make x", "note": "first"}],
        }
    ]
