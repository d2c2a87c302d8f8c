"""Each kind × each exit code of a pod: final or restarted, by the rules in the source of the operators.

training operator 1.9   Never restarts nothing; OnFailure everything (pkg/controller.v1/common/pod.go)
Job and JobSet          podFailurePolicy with FailJob, then FailJobSet; else maxRestarts
KubeRay 1.6             backoffLimit restarts a failed command whatever its exit code is
"""

from typing import Any

import pytest
from tests.cases import each_case
from tests.unit.jobs.plans import instance_for, objects, plan

from trainyard.jobs.final_exit_codes import code_for_operator, restart_in_place
from trainyard.jobs.kinds import KINDS

CODES = range(1, 256)
FINAL = {2, 3, 6}
"""Wrong configuration; a bug; not proven."""


def restarts_by_pytorch(job: dict[str, Any], code: int) -> bool:
    master = job["spec"]["pytorchReplicaSpecs"]["Master"]
    command = master["template"]["spec"]["containers"][0]["command"]
    if master["restartPolicy"] in ("Never", "ExitCode"):
        is_created_again = master["restartPolicy"] == "ExitCode" and code_for_operator(code) > 127
        return restarts_in_place(command, code) or is_created_again
    assert master["restartPolicy"] == "OnFailure"
    return True


def restarts_by_jobset(runtime: dict[str, Any], code: int) -> bool:
    jobs = runtime["spec"]["template"]["spec"]
    (job,) = jobs["replicatedJobs"]
    rules = job["template"]["spec"].get("podFailurePolicy", {}).get("rules", [])
    ends_job = any(rule["action"] == "FailJob" and code in rule["onExitCodes"]["values"] for rule in rules)
    ends_set = ["PodFailurePolicy"] in [r["onJobFailureReasons"] for r in jobs["failurePolicy"]["rules"]]
    return not (ends_job and ends_set) and jobs["failurePolicy"]["maxRestarts"] > 0


def restarts_by_ray(job: dict[str, Any], code: int) -> bool:
    if job["spec"].get("backoffLimit", 0):
        return True
    return restarts_in_place(job["spec"]["entrypoint"].split(), code)


def restarts_in_place(words: list[str], code: int) -> bool:
    restarts = int(words[words.index("--restarts") + 1]) if "--restarts" in words else 0
    ran: list[int] = []

    def run() -> int:
        ran.append(code)
        return code

    assert restart_in_place(run, restarts, lambda _: None) == code
    assert len(ran) in (1, restarts + 1)
    return len(ran) > 1


def restarted(bodies: list[dict[str, Any]], code: int) -> bool:
    by_kind = {body["kind"]: body for body in bodies}
    if "PyTorchJob" in by_kind:
        return restarts_by_pytorch(by_kind["PyTorchJob"], code)
    if "TrainingRuntime" in by_kind:
        return restarts_by_jobset(by_kind["TrainingRuntime"], code)
    return restarts_by_ray(by_kind["RayJob"], code)


@each_case("kind", [kind for kind in KINDS if kind != "hyperpod"])
@each_case("nodes", [1, 4])
@each_case("claim", ["fsx", ""])
def test_the_exit_codes_that_a_restart_cannot_help_are_final_for_every_operator(
    kind: str, nodes: int, claim: str
) -> None:
    """The operator of HyperPodPyTorchJob is not published, so nothing is claimed of it."""
    apart = () if claim else ("checkpointing.shared=false", "artifacts.store=s3://runs/phase2")
    if apart and KINDS[kind].on_ray and nodes > 1:
        return  # Ray's nodes share a volume
    made = plan(
        "compute.strategy=ddp",
        *apart,
        kind=kind,
        nodes=nodes,
        claim=claim,
        instance_type=instance_for(kind, "p5.48xlarge"),
    )
    bodies = objects(made)
    assert {code for code in CODES if not restarted(bodies, code)} == FINAL
    once = objects(plan("compute.strategy=ddp", "cluster.pod.restarts=0", kind=kind, nodes=nodes))
    assert not any(restarted(once, code) for code in CODES)


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob", "rayjob"])
def test_the_exit_codes_of_a_command_of_ones_own_mean_nothing_to_us(kind: str) -> None:
    bodies = objects(plan(kind=kind, nodes=1, command=("python", "train.py")))
    assert all(restarted(bodies, code) for code in CODES)


def test_what_was_asked_to_end_is_not_started_again_in_place() -> None:
    codes = iter([1, 75, 1])
    said: list[str] = []
    assert restart_in_place(lambda: next(codes), 5, said.append, last=(75,)) == 75
    assert said == ["ended with exit code 1; restart 1 of 5"]
