"""Each row of the table of situations in docs/runbooks/ends.md has a test that shows it.

The tests use act, GitHub's evaluator of expressions, or a stand-in of its API.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "tests/integration/any_program/test_any_program.py",
    "tests/workflows/act/test_training_ci.py",
    "tests/workflows/test_conditions.py",
    "tests/workflows/test_job_ends.py",
    "tests/scripts/test_evaluate.py",
    "tests/scripts/test_step_plan.py",
    "tests/scripts/test_run_program.py",
    "tests/scripts/test_step_action.py",
    "tests/workflows/test_pipeline.py",
    "tests/scripts/test_step_environment.py",
    "tests/scripts/test_prove_run.py",
    "tests/scripts/test_step_continue.py",
    "tests/scripts/init_github/test_setup.py",
    "tests/unit/github/test_runner_watchdog.py",
)
SHOWN_BY = """
parts of the proof hold -> a_dispatch_is_green_with_a_verified_checkpoint_in_the_bucket
are [proven already] -> only_what_nobody_requested_is_left_out_where_it_is_proven
is missing: push, schedule -> a_fresh_copy_is_green_trains_nothing_and_names_the_two_commands
the same: dispatch -> what_every_trigger_comes_to_in_every_state_of_the_variables
the daily run is off -> who_trains_this_repository
push to another branch -> who_trains_this_repository
`TRAINYARD_SUPERSEDE` -> a_superseded_push_is_dropped_by_choice
did not [learn] -> an_evaluation_is_recorded_and_decides_the_proof
a dry run -> what_every_trigger_comes_to_in_every_state_of_the_variables
configuration, input or variable wrong -> a_wrong_configuration_is_red_at_its_line_and_no_gpu_is_asked_for
role, store, run number -> a_store_that_refuses_is_red_in_seconds
the machine is not fit -> a_push_is_red_in_seconds_when_the_gpu_does_not_answer
required reviewers -> a_job_that_nobody_has_taken_is_reported_after_a_quarter_of_an_hour
another training has the machine -> a_job_that_nobody_has_taken_is_reported_after_a_quarter_of_an_hour
no runner takes the job -> the_cause_of_an_end_is_githubs_own_sentence
more than 100 jobs -> the_cause_of_an_end_is_githubs_own_sentence
a loss is not finite -> what_did_not_train_is_red_and_says_why
`limits.cost_usd` -> what_stopped_at_the_limit_of_its_cost_is_stored
the deadline, or SIGTERM -> two_segments_on_two_machines_come_to_the_same_bits_as_one
no progress, nothing stored -> what_does_not_go_on_is_red_and_says_why
(exit 4), segment 1 -> a_store_that_refuses_is_red_in_seconds
the same in a later segment -> an_outage_is_retried_by_a_next_segment_with_a_growing_pause_and_not_for_ever
the branch was deleted -> the_next_segment_goes_on_from_what_was_stored
a byte in the store differs -> a_byte_that_changed_in_the_store_is_noticed
somebody cancels -> a_cancelled_run_stops_there_with_its_checkpoints_stored
reaches its time limit -> the_cause_of_an_end_is_githubs_own_sentence
the runner dies -> a_run_whose_runner_died_is_resumed_by_its_next_attempt
artifact storage is full -> any_program_is_trained_stored_and_proven_though_github_refuses_the_artifacts
GitHub does not allow the tag -> what_may_not_be_tagged_has_one_segment_and_says_so_before
50 attempts -> github_runs_one_run_fifty_times_and_then_a_new_one_is_suggested
an environment that refuses -> the_cause_of_an_end_is_githubs_own_sentence
free plan -> without_environments_secrets_are_the_repositorys
"""
"""Words of a row's first cell, and the name of the test that shows it."""


def situations() -> list[str]:
    page = (ROOT / "docs" / "runbooks" / "ends.md").read_text()
    table = page.partition("| situation |")[2].partition("\n\n")[0]
    return [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]]


def test_every_situation_has_its_test() -> None:
    rows, tests = situations(), "".join((ROOT / file).read_text() for file in FILES)
    shown = [line.split(" -> ") for line in SHOWN_BY.strip().splitlines()]
    assert len(rows) == len(shown) >= 30
    for row, (words, test) in zip(rows, shown, strict=True):
        assert words in row
        assert re.search(rf"^def test_{test}\(", tests, flags=re.M), test
