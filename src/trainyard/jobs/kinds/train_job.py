"""TrainJob of Kubeflow Trainer 2, `trainer.kubeflow.org/v1alpha1`, with a TrainingRuntime of its own.

What a pod needs beyond its image (volumes, user, grace period) can be given to a TrainJob only by overrides,
and their field is another one in Trainer 2.0, 2.1 and 2.2 and knows no grace period before 2.2. The runtime
has had the same fields since 2.0, so each job brings its own, which is deleted with it.

When a pod fails, JobSet starts all pods again, at most `restarts` times. What a restart would
only repeat ends the job at once: a configuration, a bug, a run that is stored and not proven (2, 3, 6).
"""

from collections.abc import Iterator
from typing import Any

from trainyard.jobs.job_labels import make_labels
from trainyard.jobs.job_plan import JobPlan
from trainyard.jobs.kinds.job_object import (
    job_object,
    make_files_config_map,
    part_object,
    problems_without_ray,
)
from trainyard.jobs.kinds.kind_protocol import Manifests
from trainyard.jobs.pod_exit_codes import FINAL_CODES
from trainyard.jobs.pod_template import pod_template, resources_of

NAME = FOLLOWED = "trainjob"
LONGEST_NAME = 63 - len("-node-0-00000-xxxxx")
API = "trainer.kubeflow.org/v1alpha1"
CONTAINER = "node"
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"


def problems(plan: JobPlan) -> Iterator[str]:
    yield from problems_without_ray(plan)


def rendered(plan: JobPlan) -> Manifests:
    trainer: dict[str, Any] = {
        "image": plan.image,
        "command": list(plan.program.command),
        "numNodes": plan.nodes,
        "numProcPerNode": plan.processes_per_node,
        "resourcesPerNode": resources_of(plan.resources),
    }
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": plan.name}
    job = job_object(plan, API, "TrainJob", {"runtimeRef": reference, "trainer": trainer})
    return Manifests(job, (*make_files_config_map(plan), _runtime(plan)))


def _runtime(plan: JobPlan) -> dict[str, Any]:
    template = pod_template(plan, CONTAINER, command=False)
    template["spec"]["restartPolicy"] = "Never"
    final = {"containerName": CONTAINER, "operator": "In", "values": [int(code) for code in FINAL_CODES]}
    rules = [{"action": "FailJob", "onExitCodes": final}]
    # The exit codes of another command are not known.
    failures = {"podFailurePolicy": {"rules": rules}} if plan.program.keeps_run else {}
    node = {
        "name": CONTAINER,
        "template": {
            "metadata": {"labels": {**make_labels(plan.name, plan.kind), _STEP: "trainer"}},
            "spec": {
                "backoffLimit": 0,
                **failures,
                "template": template,
            },
        },
    }
    at_once = {"name": "final", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    policy = {"maxRestarts": plan.restarts, "rules": [at_once]}
    jobs = {"replicatedJobs": [node], "failurePolicy": policy}
    body = part_object(
        plan,
        API,
        "TrainingRuntime",
        name=plan.name,
        spec={"mlPolicy": {"numNodes": plan.nodes, "torch": {}}, "template": {"spec": jobs}},
    )
    body["metadata"]["labels"]["trainer.kubeflow.org/framework"] = "torch"
    return body
