"""Outages at one moment, and jobs that are only queued."""

from dataclasses import replace

from trainyard.github.runners import Job, Runner, judge_jobs, judge_runners

GPU = frozenset({"self-hosted", "gpu"})
NOW = 1_800_000_000.0
MINUTE = 60.0
BOX = Runner("gpu-1", online=True, busy=False, labels=GPU | {"Linux"})
AWAY = Runner("gpu-1", online=False, busy=False, labels=GPU)
BUSY = Runner("gpu-1", online=True, busy=True, labels=GPU)


def job(minutes: float, *, running: bool = False, labels: frozenset[str] = GPU, run: int = 7) -> Job:
    return Job(
        run, "Train and prove", running, labels, NOW - minutes * MINUTE, f"https://x/{run}", trains=True
    )


def outage_keys(*jobs: Job, runners: tuple[Runner, ...] | None = (BOX,)) -> list[str]:
    return [outage.key for outage in judge_runners(runners, jobs, GPU, now=NOW)]


def test_an_offline_runner_is_named_whether_a_job_waits_or_not() -> None:
    assert outage_keys(runners=(AWAY,)) == ["offline gpu-1"]
    assert outage_keys(job(30), runners=(AWAY,)) == ["offline gpu-1"]
    [outage] = judge_runners((Runner("gpu-1", online=False, busy=True, labels=GPU),), (), GPU, now=NOW)
    assert "went away in the middle of a job" in outage.title
    assert "svc.sh" in outage.next_step


def test_a_runner_that_takes_no_job_is_stuck_after_five_minutes() -> None:
    assert outage_keys(job(6)) == ["stuck gpu-1"]
    assert outage_keys(job(4)) == []
    assert outage_keys(job(6), runners=(BUSY,)) == []


def test_a_job_that_waits_for_its_turn_is_no_outage() -> None:
    assert outage_keys(job(300), job(200, running=True, run=6)) == []


def test_a_missing_runner_is_named_by_its_labels() -> None:
    other = Runner("cpu-1", online=False, busy=False, labels=frozenset({"self-hosted"}))
    assert outage_keys(job(6), runners=(other,)) == ["missing"]
    assert outage_keys(runners=(other,)) == []
    [outage] = judge_runners((other,), [job(6)], GPU, now=NOW)
    assert outage.title.startswith("No runner registered in this repository has the labels gpu, self-hosted;")


def test_labels_ignore_case() -> None:
    capitals = frozenset({"Self-Hosted", "GPU"})
    box = Runner("gpu-1", online=False, busy=False, labels=capitals)
    assert outage_keys(runners=(box,)) == ["offline gpu-1"]
    assert outage_keys(job(6, labels=capitals), runners=None) == ["waiting"]
    assert [o.key for o in judge_runners(None, [job(6)], capitals, now=NOW)] == ["waiting"]
    assert len(list(judge_jobs([job(500, running=True, labels=capitals)], GPU, now=NOW))) == 1


def test_without_permission_to_list_runners_the_jobs_show_an_outage() -> None:
    assert outage_keys(job(6), runners=None) == ["waiting"]
    assert outage_keys(job(6), job(60, running=True), runners=None) == []
    assert outage_keys(runners=None) == []


def test_a_job_beyond_its_limit_is_an_outage_with_the_command_that_ends_it() -> None:
    [outage] = judge_jobs([job(496, running=True)], GPU, now=NOW)
    assert "has run for 496 minutes" in outage.title and outage.next_step.startswith("gh run cancel 7;")


def test_jobs_waiting_for_your_own_runner_and_foreign_jobs_are_left_alone() -> None:
    hosted = frozenset({"ubuntu-24.04"})
    left = [
        job(600),
        job(480, running=True),
        job(600, running=True, labels=hosted),
        replace(job(600, running=True), trains=False),
    ]
    assert list(judge_jobs(left, GPU, now=NOW)) == []


def test_without_labels_no_job_is_watched() -> None:
    none: frozenset[str] = frozenset()
    hosted = job(600, running=True, labels=frozenset({"ubuntu-24.04"}))
    away = Runner("gpu-1", online=False, busy=False, labels=GPU)
    assert judge_runners([away], [job(60), hosted], none, now=NOW) == []
    assert judge_runners(None, [job(60), hosted], none, now=NOW) == []
    assert list(judge_jobs([job(600, running=True), hosted], none, now=NOW)) == []
