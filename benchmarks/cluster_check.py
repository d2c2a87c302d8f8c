#!/usr/bin/env python3
"""A full check of a large cluster against its bare list calls, on a real API server with simulated nodes.

It compares, alternately and in separate processes, `manage_cluster.py check` from start to end with its two
large lists (nodes, and pods that have not ended), fetched page by page with urllib3 and parsed with json. It
prints the median, the spread and the peak resident memory of each.

Reads:      the kit of a control plane in $TRAINYARD_CONTROL_PLANE
Writes:     the figures on stdout; a control plane in a temporary folder, which ends with this process
Exit codes: 0 measured; 1 a claim does not hold (5 s, 1.5 × the bare calls, 500 MiB); 2 no kit
Example:    benchmarks/cluster_check.py --nodes 1000 --pods 8000
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NODES = "/api/v1/nodes"
PODS = "/api/v1/pods?fieldSelector=status.phase!%3DSucceeded%2Cstatus.phase!%3DFailed"
BARE = """
import json, sys, threading
import urllib3
config = json.load(open(sys.argv[1]))
cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
pool = urllib3.PoolManager(ca_certs=cluster["certificate-authority"], maxsize=2)
headers = {"Authorization": "Bearer " + user["token"], "Accept-Encoding": "gzip"}
def fetch(path):
    token = ""
    while True:
        sign = "&" if "?" in path else "?"
        url = f"{cluster['server']}{path}{sign}limit=500" + (f"&continue={token}" if token else "")
        answer = json.loads(pool.request("GET", url, headers=headers).data)
        token = answer["metadata"].get("continue")
        if not token:
            return
threads = [threading.Thread(target=fetch, args=(path,)) for path in sys.argv[2:]]
[t.start() for t in threads]
[t.join() for t in threads]
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1000, metavar="N")
    parser.add_argument("--pods", type=int, default=8000, metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    args = parser.parse_args()
    kit = os.environ.get("TRAINYARD_CONTROL_PLANE")
    if not kit:
        print("TRAINYARD_CONTROL_PLANE names no kit", file=sys.stderr)
        return 2
    sys.path.insert(0, kit)
    control_plane = importlib.import_module("control_plane")
    crds = [Path(kit).parent / "crds" / "pytorchjobs.kubeflow.org-v1.9.4.yaml"]
    with tempfile.TemporaryDirectory() as folder, control_plane.ControlPlane(folder, crds=crds) as plane:
        fill(plane, args.nodes, args.pods)
        script = [sys.executable, str(ROOT / "scripts" / "manage_cluster.py"), "check", "--json"]
        check = [*script, "--kubeconfig", str(plane.kubeconfig), "--num-nodes", str(args.nodes)]
        bare = [sys.executable, "-c", BARE, str(plane.kubeconfig), NODES, PODS]
        figures = {"check": [], "bare lists": []}
        for _ in range(args.rounds + 1):  # the first warms the caches
            for name, line in (("check", check), ("bare lists", bare)):
                figures[name].append(measured(line))
        return told({name: found[1:] for name, found in figures.items()})


def fill(plane: Any, nodes: int, pods: int) -> None:
    names = plane.add_nodes(nodes)
    bodies = ({**pod(f"busy-{number}"), "spec": spec(names[number % nodes])} for number in range(pods))
    plane.create_many("/api/v1/namespaces/default/pods", bodies)
    time.sleep(15)


def pod(name: str) -> dict[str, Any]:
    labels = {"training.kubeflow.org/job-name": name.rpartition("-")[0], "app": "training", "team": "a"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}}


def spec(node: str) -> dict[str, Any]:
    """A pod of a training job as it is found on clusters: forty environment variables and a mount."""
    environment = [
        {"name": f"NCCL_SETTING_{number}", "value": "a value of some length"} for number in range(40)
    ]
    limits = {"nvidia.com/gpu": "1", "cpu": "8", "memory": "64Gi"}
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    container = {"name": "pytorch", "image": "registry/train:1", "env": environment, "volumeMounts": mounts}
    container["resources"] = {"limits": limits, "requests": limits}
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}]
    return {"nodeName": node, "containers": [container], "volumes": volumes}


def measured(line: list[str]) -> tuple[float, float]:
    """Seconds and MiB of a process."""
    started = time.perf_counter()
    process = subprocess.Popen(line, stdout=subprocess.PIPE)
    assert process.stdout is not None
    answer = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if answer:
        assert "verdict" in json.loads(answer)
    return seconds, usage.ru_maxrss / 1024


def told(figures: dict[str, list[tuple[float, float]]]) -> int:
    print("| | median | spread | memory |\n|---|---|---|---|")
    for name, found in figures.items():
        seconds = [second for second, _ in found]
        spread = f"{min(seconds):.2f} to {max(seconds):.2f} s"
        memory = max(mib for _, mib in found)
        print(f"| {name} | {statistics.median(seconds):.2f} s | {spread} | {memory:.0f} MiB |")
    check, bare = (statistics.median(second for second, _ in figures[n]) for n in ("check", "bare lists"))
    print(f"\nThe check takes {check / bare:.2f} × the bare lists.")
    memory = max(mib for _, mib in figures["check"])
    return 0 if check < 5 and check <= 1.5 * bare and memory < 500 else 1


if __name__ == "__main__":
    sys.exit(main())
