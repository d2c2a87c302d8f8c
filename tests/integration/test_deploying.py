"""Jobs are sent to a real API server with the released operators; their pods are simulated."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.integration.control_plane import operator, started
from tests.unit.cluster.generated import node
from tests.unit.jobs.manifests import manifests
from tests.waiting import wait_for

from trainyard.plan.environment.settings_reading import pod_groups

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "deploy_training_job.py"
TEAM = "/api/v1/namespaces/team"
pytestmark = pytest.mark.slow
Deploy = Callable[..., subprocess.CompletedProcess[str]]
JOBS = {
    "pytorchjob": "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs",
    "trainjob": "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs",
    "rayjob": "/apis/ray.io/v1/namespaces/team/rayjobs",
    "raycluster": "/apis/ray.io/v1/namespaces/team/rayclusters",
}
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "fsx"},
    "spec": {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "fsx",
        "volumeName": "fsx",
        "resources": {"requests": {"storage": "1200Gi"}},
    },
}
VOLUME = {
    "apiVersion": "v1",
    "kind": "PersistentVolume",
    "metadata": {"name": "fsx"},
    "spec": {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "fsx",
        "capacity": {"storage": "1200Gi"},
        "csi": {"driver": "fsx.csi.aws.com", "volumeHandle": "fs-1"},
    },
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with started(tmp_path_factory.mktemp("plane")) as plane, ExitStack() as operators:
        plane.create_many("/api/v1/nodes", [node(f"gpu-{n}", "p5.48xlarge") for n in range(10)])
        plane.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=60s")
        plane.kubectl("create", "namespace", "team")
        driver = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": "fsx.csi.aws.com"},
        }
        plane.request("POST", "/apis/storage.k8s.io/v1/csidrivers", driver)
        plane.request("POST", "/api/v1/persistentvolumes", VOLUME)
        plane.request("POST", f"{TEAM}/persistentvolumeclaims", CLAIM)
        for name in ("training-operator", "jobset", "trainer", "kuberay"):
            operators.enter_context(operator(name, plane, tmp_path_factory.mktemp(name)))
        yield plane


@pytest.fixture(scope="module")
def deploy(plane: Any) -> Deploy:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        line = [
            *(sys.executable, str(SCRIPT), "--config", str(ROOT / "configs" / "smoke.yaml")),
            *("--set", "compute.strategy=ddp", "--kubeconfig", str(plane.kubeconfig), "--namespace", "team"),
            *("--instance-type", "p5.48xlarge", "--image-uri", "registry.invalid/a@sha256:" + "a" * 64),
            *("--volume", "fsx", *options),
        ]
        return subprocess.run(line, capture_output=True, text=True, timeout=120)

    return run


def pods_of(plane: Any, job: str, namespace: str = "team") -> list[dict[str, Any]]:
    path = f"/api/v1/namespaces/{namespace}/pods?labelSelector=trainyard.dev%2Fjob%3D{job}"
    found: list[dict[str, Any]] = plane.request("GET", path)["items"]
    return found


KINDS = ("pytorchjob", "trainjob", "rayjob", "raycluster")


def send(deploy: Deploy, kind: str, *options: str, nodes: int = 2) -> subprocess.CompletedProcess[str]:
    return deploy("--kind", kind, "--job-name", f"{kind}-a", "--num-nodes", str(nodes), *options)


def test_the_api_server_is_asked_in_a_dry_run_and_nothing_is_there_after_it(
    plane: Any, deploy: Deploy
) -> None:
    for kind in ("pytorchjob", "rayjob"):
        done = send(deploy, kind, "--dry-run", "--job-name", f"{kind}-dry")  # those of `sent` may be there
        assert done.returncode == 0, done.stderr
        assert not left(plane, f"{kind}-dry")


@pytest.fixture(scope="module")
def sent(deploy: Deploy, plane: Any) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """Kind -> the pods of its job; at the end the jobs are deleted, and no object of them may be left."""
    for kind in KINDS:
        done = send(deploy, kind)
        assert done.returncode == 0, done.stderr
    found = {kind: placed(plane, f"{kind}-a") for kind in KINDS}
    yield found
    for kind in KINDS:
        followed = JOBS["rayjob" if kind == "raycluster" else kind]
        plane.request("DELETE", f"{followed}/{kind}-a", {"propagationPolicy": "Background"})
    for kind in KINDS:
        gone(plane, f"{kind}-a")


def placed(plane: Any, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = wait_for(lambda: working(plane, job), f"the pods of {job}")
    return found


def gone(plane: Any, job: str) -> None:
    wait_for(lambda: not left(plane, job), f"everything of {job} to go")


def working(plane: Any, job: str) -> list[dict[str, Any]]:
    """The pods that train, once both are on a node."""
    pods = [p for p in pods_of(plane, job) if p["spec"]["terminationGracePeriodSeconds"] == 300]
    return pods if len(pods) == 2 and all(pod["spec"].get("nodeName") for pod in pods) else []


@pytest.mark.parametrize("kind", KINDS)
def test_the_pods_of_each_kind_are_as_planned(kind: str, sent: dict[str, list[dict[str, Any]]]) -> None:
    for pod in sent[kind]:
        container = pod["spec"]["containers"][0]
        limits = container["resources"]["limits"]
        assert (limits["nvidia.com/gpu"], limits["vpc.amazonaws.com/efa"]) == ("8", "32")
        assert container["resources"]["requests"] == limits
        assert pod["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "trainyard"
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert "fsGroup" not in pod["spec"]["securityContext"], "others write to the claim too"
        assert pod["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
        assert pod["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
    assert len({pod["spec"]["nodeName"] for pod in sent[kind]}) == 2


def test_a_ray_cluster_of_the_user_runs_the_job_as_it_is(plane: Any, deploy: Deploy) -> None:
    given = ("--kind", "raycluster", "--ray-cluster", "mine", "--job-name", "on-mine", "--num-nodes", "2")
    shown = deploy(*given[:2], *given[4:], "--dry-run")
    assert shown.returncode == 0, shown.stderr
    cluster = next(body for body in yaml.safe_load_all(shown.stdout) if body["kind"] == "RayCluster")
    own = {**cluster, "metadata": {"name": "mine", "namespace": "team"}}
    uid = plane.request("POST", JOBS["raycluster"], own)["metadata"]["uid"]
    again = deploy(*given, "--dry-run")
    assert [body["kind"] for body in yaml.safe_load_all(again.stdout)] == ["RayJob"], again.stderr
    done = deploy(*given)
    assert done.returncode == 0, done.stderr
    found = plane.request("GET", f"{JOBS['raycluster']}/mine")["metadata"]
    assert (found["uid"], "labels" in found, "ownerReferences" in found) == (uid, False, False)
    job = f"{JOBS['rayjob']}/on-mine"
    wait_for(lambda: plane.request("GET", job).get("status", {}).get("rayClusterName") == "mine", "KubeRay")
    other = deploy(*given[:-3], "on-mine-2", "--num-nodes", "3")
    assert other.returncode == 2
    assert "it has 2 pods with 8 GPUs, and --num-nodes is 3" in " ".join(other.stderr.split())
    for path in (job, f"{JOBS['raycluster']}/mine"):
        plane.request("DELETE", path, {"propagationPolicy": "Background"})


@pytest.mark.parametrize(
    ("pod_code", "code", "words"), [(0, 0, "Succeeded"), (1, 1, "Failed"), (75, 75, "75")]
)
def test_a_job_that_has_ended_already_is_told_as_it_ended(
    plane: Any, deploy: Deploy, pod_code: int, code: int, words: str
) -> None:
    """It is sent again without --wait: the answer is its end, not that it was sent."""
    given = ("--kind", "pytorchjob", "--job-name", f"ended-{pod_code}", "--set", "cluster.pod.restarts=0")
    assert deploy(*given).returncode == 0
    [pod] = wait_for(lambda: pods_of(plane, f"ended-{pod_code}"), "the pod")
    end = "pod-end.stage.kwok.x-k8s.io"
    notes = {f"{end}/phase": "Failed" if pod_code else "Succeeded", f"{end}/exit-code": str(pod_code)}
    name = pod["metadata"]["name"]
    plane.request("PATCH", f"{TEAM}/pods/{name}", {"metadata": {"annotations": notes}})

    def ended() -> bool:
        found = plane.request("GET", f"{JOBS['pytorchjob']}/ended-{pod_code}").get("status", {})
        return any(c["type"] in ("Succeeded", "Failed") for c in found.get("conditions", ()))

    wait_for(ended, "the job to end")
    again = deploy(*given)
    assert again.returncode == code, again.stderr
    assert words in again.stderr
    plane.request("DELETE", f"{JOBS['pytorchjob']}/ended-{pod_code}", {"propagationPolicy": "Background"})


def left(plane: Any, job: str) -> list[str]:
    """Return the objects of a job that still exist."""
    kinds = "pods,configmaps,services,pytorchjobs,trainjobs,trainingruntimes,jobsets,jobs,rayjobs,rayclusters"
    text = plane.kubectl("get", kinds, "-n", "team", "-l", f"trainyard.dev/job={job}", "-o", "name")
    return str(text).split()


WANTED = {
    "": ["pods"],
    "batch": ["jobs"],
    "jobset.x-k8s.io": ["jobsets"],
    "kubeflow.org": ["pytorchjobs"],
    "trainer.kubeflow.org": ["trainjobs", "trainingruntimes"],
    "ray.io": ["rayjobs", "rayclusters"],
}
"""API group -> what must have a label in a namespace with a policy."""


def test_labels_that_a_policy_wants_are_on_all_that_a_job_makes(plane: Any, deploy: Deploy) -> None:
    space = {"metadata": {"name": "labelled", "labels": {"policy": "labelled"}}}
    plane.request("POST", "/api/v1/namespaces", space)
    rules = [
        {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"], "resources": names}
        for group, names in WANTED.items()
    ]
    rule = "has(object.metadata.labels) && 'cost-center' in object.metadata.labels"
    spec = {
        "matchConstraints": {"resourceRules": rules},
        "validations": [{"expression": rule, "message": "a cost-center is needed"}],
    }
    chosen = {"namespaceSelector": {"matchLabels": {"policy": "labelled"}}}
    binding = {"policyName": "labels", "validationActions": ["Deny"], "matchResources": chosen}
    for resource, body in (("ies", spec), ("ybindings", binding)):
        path = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic{resource}"
        plane.request("POST", path, {"metadata": {"name": "labels"}, "spec": body})
    place = ("--namespace", "labelled", "--volume", "", "--set", "cluster.labels={cost-center: ml}")
    template = "cluster.pod.template={metadata: {labels: {cost-center: ml}}}"

    def is_refused() -> bool:
        done = deploy(*place, "--kind", "pytorchjob", "--job-name", "bare", "--dry-run")
        return done.returncode == 1 and "a cost-center is needed" in done.stderr

    wait_for(is_refused, "the policy to be enforced")
    for kind in ("pytorchjob", "trainjob", "rayjob"):
        done = deploy(*place, "--set", template, "--kind", kind, "--job-name", f"{kind}-l")
        assert done.returncode == 0, done.stderr
        wait_for(partial(pods_of, plane, f"{kind}-l", "labelled"), f"a pod of {kind}")


def simple(kind: str) -> list[dict[str, Any]]:
    """The manifest of this kind, with what this cluster has: no queue, no policy, one claim."""
    objects = manifests()[kind]
    objects[-1]["metadata"]["name"] = f"their-{kind}"
    del objects[-1]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    for _, template in (
        group for body in objects for group in pod_groups(body["spec"], lambda _, number: number)
    ):
        pod = template["spec"]
        for key in ("serviceAccountName", "priorityClassName", "nodeSelector"):
            pod.pop(key, None)
        for volume in pod.get("volumes", ()):
            if "persistentVolumeClaim" in volume:
                volume["persistentVolumeClaim"] = {"claimName": "fsx"}
        pod["containers"] = pod["containers"][:1]
        pod["containers"][0].pop("env", None)
        template["metadata"] = {"annotations": {"pod-end.stage.kwok.x-k8s.io/phase": "Never"}}
    return objects


def count_pods(run: Callable[..., subprocess.CompletedProcess[str]], name: str) -> int:
    return int(json.loads(run("status", name, "--json").stdout)["pods"]["present"])


def test_manifests_of_others_are_sent_unchanged_and_followed(plane: Any, tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "trainyard", "job", *words, "--kubeconfig", str(plane.kubeconfig)]
        return subprocess.run([*line, "--namespace", "team"], capture_output=True, text=True, timeout=120)

    for kind in ("pytorchjob", "trainjob", "rayjob", "job"):
        file, name = tmp_path / f"{kind}.yaml", f"their-{kind}"
        file.write_text(yaml.safe_dump_all(simple(kind)))
        dry = run("deploy", "--manifest", str(file), "--dry-run")
        assert dry.returncode == 0 and "trainyard.dev/plan" in dry.stdout, dry.stderr
        assert not re.search("^-[^-]", dry.stdout, re.M), dry.stdout
        sent = run("deploy", "--manifest", str(file))
        assert sent.returncode == 0, sent.stderr
        again = run("deploy", "--manifest", str(file))
        assert "exists already, with the same plan" in again.stderr, again.stderr
        present = partial(count_pods, run, name)
        # The head of a RayCluster is a pod too.
        wait_for(lambda: present() == 2 + (kind == "rayjob"), f"the pods of {name}")  # noqa: B023
        cancelled = run("cancel", name)
        if kind == "rayjob":
            assert cancelled.returncode == 2 and "shutdownAfterJobFinishes" in cancelled.stderr
        else:
            assert cancelled.returncode == 0, cancelled.stderr
            wait_for(lambda: not present(), "them to go")  # noqa: B023
            resent = run("resubmit", name)
            assert resent.returncode == 0, resent.stderr
        for each in (name,) if kind == "rayjob" else (name, f"{name}-2"):
            done = run("delete", each, "--no-logs")
            assert done.returncode == 0, done.stderr
            gone(plane, each)
