"""The decision to send a job again: the rules for every class, and properties of any history of failures."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import each_case

from trainyard.errors import DamagedFileError
from trainyard.jobs.follow.job_retries import record_of
from trainyard.jobs.state.job_state import JobFailure, JobState, State
from trainyard.watch.failure_classes import RECOVERABLE, FailureClass
from trainyard.watch.retry_decision import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    Attempt,
    AvoidedNode,
    Retry,
    RetryClaim,
    RetryRecord,
    Stop,
    claim_from,
    decide_retry,
    pause_before,
    signature_of,
    with_lost_nodes,
)


def failed_job(
    failure_class: str = "nccl-timeout", *, why: str = "it ended", node: str = "", **more: object
) -> JobState:
    failure = JobFailure(FailureClass(failure_class), (why,), node=node, **more)  # type: ignore[arg-type]
    return JobState("job", "team", "pytorchjob", State.FAILED, why, failure=failure)


def decide(state: JobState, record: RetryRecord, step: int | None = None) -> Retry | Stop:
    return decide_retry(state, record, step=step, jitter=0.5)


@each_case("failure_class", FailureClass)
def test_only_what_can_heal_is_retried(failure_class: FailureClass) -> None:
    found = decide(failed_job(failure_class.value), RetryRecord(allowed=3))
    assert isinstance(found, Retry) == (failure_class in RECOVERABLE)
    never = "user-code configuration nan auth cuda-mismatch quota oom-gpu oom-host disk-full cancelled"
    if failure_class.value in never.split():
        assert found == Stop(f"no retry recovers from {failure_class.value}")


def test_an_unknown_failure_is_retried_once_if_steps_were_made() -> None:
    assert decide(failed_job("unknown"), RetryRecord(3)) == Stop(
        "no retry recovers from unknown without a new checkpoint"
    )
    first = decide(failed_job("unknown"), RetryRecord(3), step=100)
    assert isinstance(first, Retry) and first.record.spent == 1
    assert isinstance(decide(failed_job("unknown"), first.record, step=100), Stop), "nothing was gained"
    assert isinstance(decide(failed_job("unknown", recovers=False), RetryRecord(3), step=100), Stop)


SUCCEEDED = JobState("job", "team", "pytorchjob", State.SUCCEEDED, "done")


@each_case(
    ("state", "record", "why"),
    [
        # A rule of the table overrides the class.
        (failed_job("nccl-error", recovers=False), RetryRecord(3), "no retry recovers from nccl-error"),
        (failed_job("image-pull", recovers=True), RetryRecord(3), None),
        (SUCCEEDED, RetryRecord(3), "it has ended as Succeeded"),
        (failed_job(), RetryRecord(allowed=0), "0 of 0 retries are spent"),
        (failed_job(), RetryRecord(2, spent=2), "2 of 2 retries are spent"),
    ],
)
def test_what_has_not_failed_is_over_or_cannot_heal_is_left_alone(
    state: JobState, record: RetryRecord, why: str | None
) -> None:
    found = decide(state, record)
    assert isinstance(found, Retry) if why is None else found == Stop(why)


def test_the_same_failure_twice_in_a_row_without_progress_stops() -> None:
    first = decide(failed_job(), RetryRecord(9), step=100)
    assert isinstance(first, Retry)
    again = decide(failed_job(), first.record, step=100)
    assert isinstance(again, Stop) and "twice in a row without progress" in again.why
    assert isinstance(decide(failed_job(), first.record, step=101), Retry), "there was progress"
    assert isinstance(decide(failed_job(why="another"), first.record, step=100), Retry), "it was another one"
    assert isinstance(decide(failed_job(), first.record, step=None), Stop), "nobody saw progress"


@pytest.mark.parametrize(
    ("failure_class", "code"), [("time-limit", None), ("preempted", 75), ("stopped", 75)]
)
def test_ends_that_are_no_failure_cost_nothing_with_progress(failure_class: str, code: int | None) -> None:
    record = RetryRecord(allowed=0)
    for step in (100, 200, 300):
        found = decide(failed_job(failure_class, exit_code=code), record, step=step)
        assert isinstance(found, Retry) and found.record.spent == 0
        record = found.record
    assert isinstance(decide(failed_job(failure_class, exit_code=code), record, step=300), Stop)
    assert isinstance(decide(failed_job(failure_class, exit_code=code), RetryRecord(0), step=None), Stop)


def test_nodes_are_avoided_where_they_are_the_cause() -> None:
    def avoided(*failures: tuple[str, str]) -> tuple[AvoidedNode, ...]:
        record = RetryRecord(99)
        found: Retry | Stop | None = None
        for number, (failure_class, node) in enumerate(failures):
            found = decide(failed_job(failure_class, node=node), record, step=number)
            assert isinstance(found, Retry)
            record = found.record
        assert isinstance(found, Retry)
        return found.avoided

    assert avoided(("nccl-timeout", "a")) == (), "the node that saw it need not be the one that failed"
    assert avoided(("hardware", "a")) == (AvoidedNode("a", strictly=True),)
    assert avoided(("node-lost", "a")) == (AvoidedNode("a", strictly=False),), "it may come back"
    lasting = failed_job("configuration", node="a", recovers=True, other_node=True)
    found = decide(lasting, RetryRecord(1))
    assert isinstance(found, Retry) and found.avoided == (AvoidedNode("a", strictly=False),)
    twice = (("node-lost", "a"), ("hardware", "b"), ("node-lost", "a"))
    assert avoided(*twice) == (AvoidedNode("a", strictly=True), AvoidedNode("b", strictly=True))


def test_the_signature_is_the_same_for_the_same_failure_of_another_job() -> None:
    def signature(job: str, pod: str, number: int, node: str = "n1") -> str:
        why = f"{pod} on {node}: container pytorch ended with exit code 1 at 0x7f{number}, step {number}"
        return signature_of(job, JobFailure(FailureClass.NCCL_ERROR, (why,), exit_code=1, pod=pod, node=node))

    first = signature("llama", "llama-worker-0", 12)
    assert first == signature("llama-2", "llama-2-worker-0", 4711, "n2")
    assert first.startswith("nccl-error exit 1: ")
    lost = JobFailure(FailureClass.NODE_LOST, ("x",), node="n1")
    assert signature_of("a", lost) == "node-lost on n1: x"
    explained = JobFailure(FailureClass.NCCL_ERROR, ("pod", "last lines:7: NCCL WARN 3", "reason"))
    assert signature_of("a", explained) == "nccl-error: last lines:#: NCCL WARN #"


@given(st.integers(1, 60), st.floats(0, 1))
def test_the_pause_grows_to_a_limit_and_jitter_only_shortens_it(failures: int, jitter: float) -> None:
    found = pause_before(failures, jitter)
    assert FIRST_PAUSE / 2 <= found <= LONGEST_PAUSE
    assert pause_before(failures, 1.0) / 2 <= found <= pause_before(failures, 1.0)
    assert pause_before(failures + 1, jitter) >= found


FAILURES = st.tuples(
    st.sampled_from([each.value for each in sorted(FailureClass)]),
    st.sampled_from(["a", "b"]),
    st.sampled_from([None, 1, 75, 137]),
    st.one_of(st.none(), st.integers(0, 5)),
)


@settings(max_examples=3 * settings().max_examples)
@given(st.integers(0, 5), st.lists(FAILURES, max_size=20))
def test_no_history_spends_more_than_the_budget(
    allowed: int, failures: list[tuple[str, str, int | None, int | None]]
) -> None:
    record, paid = RetryRecord(allowed), 0
    for failure_class, words, code, step in failures:
        state = failed_job(failure_class, why=words, node=words, exit_code=code)
        found = decide(state, record, step)
        if isinstance(found, Stop):
            continue
        paid += found.record.spent - record.spent
        assert 0 <= found.record.spent - record.spent <= 1
        assert FailureClass(failure_class) in (*RECOVERABLE, FailureClass.UNKNOWN)
        record = record_of(job_with(allowed, found.record.to_json()))
        assert record == found.record, "what the cluster keeps is what was decided"
    assert paid == record.spent <= allowed


def job_with(allowed: object, record: str | None = None) -> Mapping[str, object]:
    notes = {"trainyard.dev/auto-retry": allowed if isinstance(allowed, str) else str(allowed)}
    if record is not None:
        notes["trainyard.dev/retry-record"] = record
    return {"metadata": {"annotations": notes}}


CLAIM = RetryClaim(
    "job-2",
    12.5,
    RetryRecord(3, 1, (Attempt("job", FailureClass.HARDWARE, "hardware on a: x", 5, "a"),)),
    (AvoidedNode("a", strictly=True),),
    FailureClass.HARDWARE,
    "hardware on a: x",
)


def test_a_claim_is_read_back_as_it_was_written() -> None:
    assert claim_from(CLAIM.to_json()) == CLAIM


def wrong_values() -> list[tuple[str, object]]:
    whole = json.loads(CLAIM.to_json())
    values: tuple[object, ...] = (None, [], {"a": 1})
    wrong = [(key, value) for key in whole for value in values if key != "why"]
    records = [{**whole["record"], key: -1} for key in ("spent", "allowed", "attempts")]
    records += [{**whole["record"], "attempts": [{"job": "", "failure_class": "x"}]}]
    return [*wrong, ("next_name", ""), ("failure_class", "bad luck"), *(("record", r) for r in records)]


@each_case(("key", "value"), [w for w in wrong_values() if w != ("avoided", [])])
def test_a_claim_with_a_wrong_value_is_refused(key: str, value: object) -> None:
    with pytest.raises(DamagedFileError, match="claim of a retry"):
        claim_from(json.dumps({**json.loads(CLAIM.to_json()), key: value}))


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", '{"spent": true, "attempts": []}', '{"attempts": [{}]}']
)
def test_a_record_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(DamagedFileError, match="retry-record"):
        record_of(job_with(3, text))


def test_a_budget_that_is_no_number_is_refused_and_none_is_none() -> None:
    with pytest.raises(DamagedFileError, match="auto-retry"):
        record_of(job_with("many"))
    assert record_of({"metadata": {}}) == RetryRecord(0)


def test_a_lost_node_explains_what_the_other_pods_saw() -> None:
    lost = {"n2": "does not answer"}
    state = with_lost_nodes(failed_job("user-code", why="Connection reset", node="n1"), lost)
    assert state.failure is not None
    assert (state.failure.failure_class, state.failure.node) == ("node-lost", "n2")
    assert state.reason == "the node n2 of one of its pods does not answer"
    for certain in ("oom-gpu", "nan", "disk-full", "configuration"):
        assert with_lost_nodes(failed_job(certain), lost) == failed_job(certain)
    assert with_lost_nodes(failed_job("user-code"), {}) == failed_job("user-code")
