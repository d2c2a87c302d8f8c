"""Kinds × strategies × instance types × numbers of nodes pass the schemas of the real CRDs, strictly."""

import itertools
import json
from typing import Any

import pytest
from tests.integration.strict_schema import problems
from tests.unit.jobs.plans import NODES, STRATEGIES, config, instance_for, objects, request
from tests.unit.jobs.recipe_orders import GIVEN, recipe_plan
from tests.unit.jobs.recipe_orders import NODES as RECIPE_NODES

from trainyard.jobs.job_planning import plan_job
from trainyard.jobs.kinds import KINDS
from trainyard.plan.instances import CATALOGUE

pytestmark = pytest.mark.slow
SCHEMAS = {
    "PyTorchJob": (
        "pytorchjobs.kubeflow.org-v1.9.4.yaml",
        "pytorchjobs.kubeflow.org-hyperpod-chart.yaml",
    ),
    "TrainJob": ("trainjobs.trainer.kubeflow.org-v2.1.0.yaml", "trainjobs.trainer.kubeflow.org-v2.3.0.yaml"),
    "TrainingRuntime": (
        "trainingruntimes.trainer.kubeflow.org-v2.1.0.yaml",
        "trainingruntimes.trainer.kubeflow.org-v2.3.0.yaml",
    ),
    "RayCluster": ("rayclusters.ray.io-v1.6.2.yaml",),
    "RayJob": ("rayjobs.ray.io-v1.6.2.yaml",),
}
"""The CRD of HyperPodPyTorchJob is not public."""
FRAGMENT = {
    "metadata": {"labels": {"team": "vision"}, "annotations": {"a/b": "c"}},
    "spec": {
        "imagePullSecrets": [{"name": "regcred"}],
        "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}],
        "topologySpreadConstraints": [
            {"topologyKey": "rack", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "initContainers": [{"name": "warm", "image": "warm:1"}],  # the older CRD has no restartPolicy here
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "containers": [{"name": "main", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
    },
}
SHAPES = ("g5.xlarge", "g5.8xlarge", "g6e.24xlarge", "p5.48xlarge")
"""Types with no EFA interface, one, two and thirty-two."""


def bodies(kind: str, strategy: str, instance: str, nodes: int) -> list[dict[str, Any]]:
    known = next(one for one in CATALOGUE if one.name == instance)
    replicas = ("compute.replicas=2",) if strategy == "hsdp" and known.gpus * nodes > 1 else ()
    processes = 1 if strategy == "single" and nodes == 1 else None
    if strategy == "single" and nodes > 1:
        return []
    wanted = request(
        kind=kind,
        instance_type=instance_for(kind, instance),
        nodes=nodes,
        processes_per_node=processes,
        queue="research",
        token_secret="hf:token",
        secret_environment="store",
        tolerations=("team",),
        environment={"LOG": "1"},
    )
    template = f"cluster.pod.template={json.dumps(FRAGMENT)}"
    return objects(plan_job(config(*STRATEGIES[strategy], *replicas, template), wanted))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "hyperpod"])
def test_every_combination_passes_the_schemas(kind: str) -> None:
    seen: set[str] = set()
    for strategy, instance, nodes in itertools.product(STRATEGIES, SHAPES, NODES):
        require_valid(bodies(kind, strategy, instance, nodes), seen)
    for known in CATALOGUE:
        require_valid(bodies(kind, "ddp", known.name, 4), seen)
    assert seen


@pytest.mark.parametrize("recipe", GIVEN)
def test_every_recipe_passes_the_schemas_of_every_kind_it_runs_on(recipe: str) -> None:
    kinds = [kind for kind in KINDS if kind != "hyperpod" and (recipe != "verl" or KINDS[kind].on_ray)]
    seen: set[str] = set()
    for kind, nodes in itertools.product(kinds, RECIPE_NODES):
        require_valid(objects(recipe_plan(recipe, kind=kind, nodes=nodes, queue="research")), seen)
    assert seen


def require_valid(found: list[dict[str, Any]], seen: set[str]) -> None:
    """Validate each kind and spec once, and each kind without a spec once."""
    for body in found:
        key = json.dumps([body["kind"], body["spec"]] if "spec" in body else body["kind"], sort_keys=True)
        if key in seen:
            continue
        seen.add(key)
        for schema in SCHEMAS.get(body["kind"], ()):
            assert problems(schema, body) == []


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("spec", "pytorchReplicaSpecs", "Master", "replica"), 1, "replica"),
        (("spec", "nprocPerNode"), 8, "nprocPerNode"),
        (("spec", "runPolicy", "cleanPodPolicy"), 3, "cleanPodPolicy"),
    ],
)
def test_the_schemas_refuse_what_the_api_server_would(place: tuple[str, ...], value: Any, words: str) -> None:
    body = bodies("pytorchjob", "ddp", "p5.48xlarge", 4)[-1]
    inner = body
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    assert any(words in problem for problem in problems(SCHEMAS["PyTorchJob"][0], body))
