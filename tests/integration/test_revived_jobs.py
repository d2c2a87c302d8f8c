"""Kubeflow Trainer trains a finished job again when its JobSet is deleted: it is seen and stopped."""

from pathlib import Path

import pytest
from tests.integration.job_world import NAMESPACE, NODES, training_runtime, trainjob, world
from tests.waiting import wait_for

from trainyard.gateways.kubernetes.api import Api
from trainyard.jobs.follow.job_retries import RetryLoop
from trainyard.jobs.job_reader import JobReader
from trainyard.jobs.state.job_state import State
from trainyard.jobs.state.state_machine import judge_job

pytestmark = pytest.mark.slow
JOB_SET = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets/again"


def test_a_failed_job_that_trains_again_is_seen_and_stopped(tmp_path: Path) -> None:
    with world(tmp_path, "jobset", "trainer") as here:
        here.create("trainjob", trainjob("again"), training_runtime("again"))
        here.end(here.pod("again", 1), 1)
        assert here.follow("trainjob", "again").state is State.FAILED
        wait_for(lambda: "deletionTimestamp" not in here.request("GET", JOB_SET)["metadata"], "the JobSet")
        here.request("DELETE", JOB_SET, {"propagationPolicy": "Background"})
        here.running("again")
        reader = JobReader(Api(here.access))
        job = reader.find_job(NAMESPACE, "again", "trainjob")
        state = judge_job(reader.observe(job))
        assert (state.state, state.holds_resources) == (State.FAILED, True)
        assert f"and {NODES - 1} more pods after the job had ended" in state.alerts[0]
        announced: list[str] = []
        loop = RetryLoop(reader.api, lambda _phase, text, *_: announced.append(text))
        assert loop.follow_to_end(NAMESPACE, "again", "trainjob", 60.0, retries=False).revived
        assert "stopped: suspend trainjobs/again" in announced[-1]
        wait_for(lambda: not here.pods("again"), "the pods to go")
        after = judge_job(reader.observe(reader.find_job(NAMESPACE, "again", "trainjob")))
        assert (after.state, after.alerts, after.holds_resources) == (State.FAILED, (), False)
