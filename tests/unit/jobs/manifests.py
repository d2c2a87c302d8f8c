"""Jobs that other people wrote, as small as their shapes allow: one of each kind."""

from copy import deepcopy
from typing import Any

import yaml

Json = dict[str, Any]
_POD = """
  metadata: {labels: {app: theirs}}
  spec:
    nodeSelector: {node.kubernetes.io/instance-type: p5.48xlarge, pool: train}
    tolerations: [{key: pool, operator: Exists}]
    serviceAccountName: trainer
    priorityClassName: high
    volumes:
    - {name: shm, emptyDir: {medium: Memory}}
    - {name: data, persistentVolumeClaim: {claimName: datasets}}
    - {name: fsx, persistentVolumeClaim: {claimName: fsx-claim}}
    containers:
    - name: CONTAINER
      image: registry.invalid/theirs:1
      command: [torchrun, --nproc_per_node=8, train.py]
      args: [--checkpoint_dir=/fsx/out]
      env:
      - {name: NCCL_DEBUG, value: INFO}
      - {name: WANDB_API_KEY, value: planted}
      - {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}
      resources:
        requests: {cpu: 8, memory: 64Gi, nvidia.com/gpu: 8, vpc.amazonaws.com/efa: 32}
        limits: {nvidia.com/gpu: 8, vpc.amazonaws.com/efa: 32}
      volumeMounts:
      - {name: shm, mountPath: /dev/shm}
      - {name: data, mountPath: /data}
      - {name: fsx, mountPath: /fsx}
    - {name: sidecar, image: registry.invalid/logs:1}
"""


def template(container: str) -> Json:
    found: Json = yaml.safe_load(_POD.replace("CONTAINER", container))
    return found


def body(api_version: str, kind: str, spec: Json) -> Json:
    labels = {"kueue.x-k8s.io/queue-name": "research", "app.kubernetes.io/managed-by": "Helm"}
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "theirs", "labels": labels, "annotations": {"note": "kept"}},
        "spec": spec,
    }


def head() -> Json:
    pod = {"containers": [{"name": "ray-head", "image": "registry.invalid/theirs:1"}]}
    return {"rayStartParams": {}, "template": {"spec": pod}}


def ray_cluster() -> Json:
    workers = {"groupName": "gpu", "replicas": 2, "rayStartParams": {}, "template": template("ray-worker")}
    return {"headGroupSpec": head(), "workerGroupSpecs": [workers]}


_STEP = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
_NODE = {"name": "node", "template": {"metadata": _STEP, "spec": {"template": template("node")}}}
RUNTIME = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainingRuntime",
    "metadata": {"name": "theirs", "labels": {"trainer.kubeflow.org/framework": "torch"}},
    "spec": {"mlPolicy": {"numNodes": 2, "torch": {}}, "template": {"spec": {"replicatedJobs": [_NODE]}}},
}
REFERENCE = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "theirs"}


def manifests() -> dict[str, list[Json]]:
    """Kind -> the objects of a manifest with two pods that train."""
    worker = {"replicas": 2, "restartPolicy": "OnFailure", "template": template("pytorch")}
    group = {"name": "pods", "replicas": 2, "template": template("pytorch")}
    indexed: Json = {
        "parallelism": 2,
        "completions": 2,
        "completionMode": "Indexed",
        "template": template("main"),
    }
    indexed["template"]["spec"]["restartPolicy"] = "Never"
    trainer = {
        "command": ["torchrun", "--nproc_per_node=8", "train.py"],
        "args": ["--checkpoint_dir=/fsx/out"],
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "etcd"},
        "spec": {"ports": [{"port": 2379}]},
    }
    elastic = {"elasticPolicy": {"minReplicas": 1}, "pytorchReplicaSpecs": {"Worker": worker}}
    return {
        "pytorchjob": [service, body("kubeflow.org/v1", "PyTorchJob", elastic)],
        "hyperpod": [body("sagemaker.amazonaws.com/v1", "HyperPodPyTorchJob", {"replicaSpecs": [group]})],
        "trainjob": [
            deepcopy(RUNTIME),
            body("trainer.kubeflow.org/v1alpha1", "TrainJob", {"runtimeRef": REFERENCE, "trainer": trainer}),
        ],
        "rayjob": [
            body("ray.io/v1", "RayJob", {"entrypoint": "python train.py", "rayClusterSpec": ray_cluster()})
        ],
        "raycluster": [body("ray.io/v1", "RayCluster", ray_cluster())],
        "job": [body("batch/v1", "Job", indexed)],
    }
