"""A cluster with policies: `recipe: command` is sent, runs, is stored and proven with a pod template alone.

The namespace enforces the level restricted, an admission policy wants labels and a pull secret, and a
webhook adds a proxy to the pods that ask for it, as a service mesh does.
"""

import base64
import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.git_repository import init_repository
from tests.integration.nodes.conftest import IMAGE, ROOT, SCRIPTS, Nodes, s3_variables
from tests.integration.nodes.webhook import admission_webhook

pytestmark = pytest.mark.slow
SPACE, JOB = "guarded", "policies"
# This machine's Python may be in a folder that only root may enter, and these pods do not run as root.
PYTHON = f"/opt/python/bin/python3.{sys.version_info.minor}"
TRAINER = Path(__file__).parents[1] / "any_program" / "plain_trainer.py"
POLICY = "admissionregistration.k8s.io/v1"
PROXY = {
    "name": "mesh-proxy",
    "image": IMAGE,
    "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"],
    "restartPolicy": "Always",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
RULES = {
    "has(object.metadata.labels) && 'cost-center' in object.metadata.labels": "a cost-center is needed",
    "object.kind != 'Pod' || has(object.spec.imagePullSecrets)": "the registry needs a pull secret",
}
CONFIG = """\
recipe: command
program:
  command: [{python}, train.py, --steps, '6', --save_steps, '3']
  data: [data]
  checkpoints: out/checkpoint-*
  lock: requirements.txt
cluster:
  labels: {{cost-center: ml-7}}
  pod:
    template:
      metadata:
        labels: {{cost-center: ml-7, sidecar.istio.io/inject: "true"}}
      spec:
        imagePullSecrets: [{{name: regcred}}]
        containers:
        - name: main
          env:
          - {{name: GIT_CONFIG_COUNT, value: "1"}}
          - {{name: GIT_CONFIG_KEY_0, value: safe.directory}}
          - {{name: GIT_CONFIG_VALUE_0, value: "*"}}
          - {{name: PYTHONPATH, value: "{packages}"}}
          - {{name: LD_LIBRARY_PATH, value: /opt/python/lib}}
          volumeMounts: [{{name: python, mountPath: /opt/python, readOnly: true}}]
        volumes: [{{name: python, persistentVolumeClaim: {{claimName: python}}}}]
"""
Json = dict[str, Any]


def add_a_proxy(request: Json) -> Json:
    value = [*request["object"]["spec"].get("initContainers", ()), PROXY]
    patch = [{"op": "add", "path": "/spec/initContainers", "value": value}]
    text = base64.b64encode(json.dumps(patch).encode()).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": text}


@pytest.fixture
def mesh(tmp_path: Path, nodes: Nodes) -> Iterator[None]:
    """The webhook of a mesh, for the pods that ask for it."""
    chosen = {"matchLabels": {"sidecar.istio.io/inject": "true"}}
    with admission_webhook(nodes, tmp_path, "mutating", "mesh", add_a_proxy, objectSelector=chosen):
        yield


@pytest.fixture
def guarded(nodes: Nodes) -> Path:
    """The namespace with its policies, Secrets and claim; return the folder of the volume."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted", "kubernetes.io/metadata.name": SPACE}
    nodes.request("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE, "labels": labels}})
    resources = [("", "v1", ["pods"]), ("kubeflow.org", "v1", ["pytorchjobs"])]
    matched = [
        {"apiGroups": [group], "apiVersions": [version], "operations": ["CREATE"], "resources": names}
        for group, version, names in resources
    ]
    rules = [{"expression": rule, "message": message} for rule, message in RULES.items()]
    policy = {"matchConstraints": {"resourceRules": matched}, "validations": rules}
    binding = {
        "policyName": SPACE,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": SPACE}}},
    }
    for resource, spec in (("ies", policy), ("ybindings", binding)):
        path = f"/apis/{POLICY}/validatingadmissionpolic{resource}"
        nodes.request("POST", path, {"metadata": {"name": SPACE}, "spec": spec})
    keys = s3_variables(nodes.outside.replace("127.0.0.1", "s3.default.svc"))
    space = f"/api/v1/namespaces/{SPACE}"
    nodes.request("POST", f"{space}/secrets", {"metadata": {"name": "s3"}, "stringData": keys})
    volume: Path = nodes.plane.add_volume(SPACE)
    volume.chmod(0o777)
    nodes.plane.add_volume("python", path=sys.base_prefix)
    for name in (SPACE, "python"):
        wanted = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": name}
        claim = {**wanted, "resources": {"requests": {"storage": "1Gi"}}}
        nodes.request("POST", f"{space}/persistentvolumeclaims", {"metadata": {"name": name}, "spec": claim})
    return volume


@pytest.fixture
def repository(guarded: Path) -> Path:
    """A repository of somebody else on the volume, which pods of any user can read and write."""
    folder = guarded / "repository"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "tokens.txt").write_text("1 2 3")
    (folder / "train.py").write_text(TRAINER.read_text())
    (folder / "requirements.txt").write_text("pinned==1.0\n")
    (folder / ".gitignore").write_text("out/\n")
    packages = f"{sysconfig.get_path('purelib')}:{ROOT / 'src'}"
    (folder / "trainyard.yaml").write_text(CONFIG.format(python=PYTHON, packages=packages))
    init_repository(folder)
    subprocess.run(["chmod", "-R", "a+rwX", folder], check=True)
    return folder


def test_a_program_is_proven_in_a_cluster_with_policies_by_its_template_alone(
    nodes: Nodes, guarded: Path, mesh: None, repository: Path
) -> None:
    nodes.work("pytorchjob")
    settings = {
        "cluster.pod.directory": f"/checkpoints/{repository.name}",
        "cluster.pod.python": PYTHON,
        "cluster.pod.cpu": 2,
        "cluster.pod.memory": "3Gi",
        "artifacts.store": nodes.store,
    }
    line = [
        *(
            sys.executable,
            str(SCRIPTS / "deploy_training_job.py"),
            "--config",
            str(repository / "trainyard.yaml"),
        ),
        *(f"--set={key}={value}" for key, value in settings.items()),
        *("--kubeconfig", str(nodes.plane.kubeconfig), "--namespace", SPACE, "--job-name", JOB),
        *("--kind", "pytorchjob", "--gpu-per-node", "0", "--secret", "s3", "--num-nodes", "1"),
        *("--accept", "storage", "--accept", "operator", "--image-uri", IMAGE, "--volume", SPACE),
    ]
    bare = subprocess.run(
        [*line, "--set=cluster.pod.template={}", "--dry-run"], capture_output=True, text=True
    )
    assert bare.returncode == 1 and "a cost-center is needed" in bare.stderr, bare.stderr
    done = subprocess.run([*line, "--wait", "--timeout", "8m"], capture_output=True, text=True, timeout=600)
    path = f"/api/v1/namespaces/{SPACE}/pods/{JOB}-master-0"
    pod = nodes.request("GET", path)
    log = nodes.plane.kubectl("-n", SPACE, "logs", f"{JOB}-master-0", "-c", "pytorch")
    assert done.returncode == 0, f"{done.stderr[-6000:]}\n{log[-6000:]}"
    assert [each["name"] for each in pod["spec"]["initContainers"]] == ["mesh-proxy"]
    run = json.loads((guarded / SPACE / JOB / "run.json").read_text())
    proof = json.loads((guarded / SPACE / JOB / "report" / "proof.json").read_text())
    assert run["outcome"]["status"] == "succeeded" and proof["proven"] is True, proof
