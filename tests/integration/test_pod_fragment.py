"""Fragments are merged as kubectl merges strategic patches, and the control plane accepts the merged pods."""

import importlib
import json
from pathlib import Path
from subprocess import run
from typing import Any

from tests.integration.control_plane import kit
from tests.unit.jobs.plans import plan

from trainyard.cluster.pod_fragment import merge_fragment
from trainyard.config.pod_schema import find_schema_problems
from trainyard.jobs.pod_template import pod_template

FRAGMENTS: tuple[dict[str, Any], ...] = (
    {"metadata": {"labels": {"team": "vision", "sidecar.istio.io/inject": "true"}}},
    {"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": None, "a/b": "c"}}},
    {
        "spec": {
            "imagePullSecrets": [{"name": "regcred"}],
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["proxy"]}],
            "securityContext": {"runAsUser": 7, "sysctls": [{"name": "net.x", "value": "1"}]},
            "topologySpreadConstraints": [
                {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
            ],
        }
    },
    {
        "spec": {
            "containers": [
                {
                    "name": "pytorch",
                    "env": [{"name": "HF_HOME", "value": "/data"}, {"name": "USER", "value": "me"}],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    "ports": [{"containerPort": 9100, "name": "metrics"}],
                    "resources": {"limits": {"ephemeral-storage": "9Gi"}},
                    "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                    "livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 5},
                },
                {"name": "agent", "image": "agent:1"},
            ],
            "initContainers": [{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        }
    },
)


def test_a_fragment_is_merged_as_kubectl_merges_a_patch(tmp_path: Path) -> None:
    """kubectl is the other implementation of the merge by Kubernetes' patch keys."""
    kit()
    kubectl = importlib.import_module("binaries").folder() / "kubectl"
    rendered = {"apiVersion": "v1", "kind": "Pod", **pod_template(plan(nodes=2), "pytorch")}
    rendered["metadata"]["name"] = "x"
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(rendered))
    for fragment in FRAGMENTS:
        assert list(find_schema_problems(fragment)) == []
        command = [kubectl, "patch", "--local", "-f", file, "--type=strategic", "-o", "json", "-p"]
        found = run([*command, json.dumps(fragment)], capture_output=True, check=True, timeout=60)
        merged = merge_fragment(rendered, fragment, "pytorch")
        assert by_name(merged) == by_name(json.loads(found.stdout))


def by_name(value: Any) -> Any:
    """Return the value with lists of named entries as mappings, because kubectl puts new entries first."""
    if isinstance(value, dict):
        return {key: by_name(each) for key, each in value.items()}
    keys = ("name", "mountPath", "ip", "topologyKey", "containerPort")
    if isinstance(value, list) and value and isinstance(value[0], dict):
        key = next((key for key in ("mountPath", *keys) if all(key in each for each in value)), "")
        return {each[key]: by_name(each) for each in value} if key else value
    return value
