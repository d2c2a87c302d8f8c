"""Two pods ask for EFA on real nodes, and a stand-in writes the log that NCCL would have written.

The nodes state the devices of a p5.48xlarge. gloo trains; the logs say EFA, or sockets.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.integration.job_world import NAMESPACE
from tests.integration.nodes.conftest import Nodes
from tests.integration.test_network_of_machines import FORM, STAND_IN
from tests.unit.watch.test_network_verdict import cases, process

pytestmark = pytest.mark.slow
AMOUNTS = {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32"}
ACCEPTED = ("gpu", "device-plugin", "efa", "placement", "node-health")
SETTINGS: dict[str, Any] = {
    "compute__network": "efa",
    "cluster__pod__restarts": 3,
    "monitoring__hang_seconds": 60,
}


@pytest.fixture(scope="module")
def p5(nodes: Nodes) -> Nodes:
    nodes.work("pytorchjob")
    for name in nodes.plane.nodes:
        nodes.plane.kubectl(
            *("label", "node", name, "--overwrite", "node.kubernetes.io/instance-type=p5.48xlarge")
        )
        status = json.dumps({"status": {"capacity": AMOUNTS, "allocatable": AMOUNTS}})
        nodes.plane.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", status)
    return nodes


def options_for(case: str, folder: Path) -> tuple[str, ...]:
    (folder / "sitecustomize.py").write_text(STAND_IN)
    for rank in range(2):
        (folder / f"rank-{rank}.log").write_text("".join(process(FORM, cases(FORM)[case], rank, 2)))
    accepted = [word for name in ACCEPTED for word in ("--accept", name)]
    variables = (f"--env=PYTHONPATH={folder}", f"--env=REPLAYED={folder}")
    return (
        "--gpu-per-node",
        "8",
        "--nproc-per-node",
        "1",
        *variables,
        *accepted,
        "--monitor",
        "--timeout=9m",
    )


def test_a_job_that_opened_sockets_ends_within_a_minute_and_is_not_restarted(
    p5: Nodes, tmp_path: Path
) -> None:
    more = {**SETTINGS, "training__max_steps": 100_000}
    options = (*options_for("sockets", tmp_path), "--auto-retry=2")
    told = p5.deploy("sockets", "pytorchjob", *options, code=None, **more)
    assert re.search(r"tcp-fallback", told), told
    assert p5.jobs("sockets") == ["sockets"], "it is not sent again"
    outcome = p5.run("sockets")["outcome"]
    assert outcome["failure"]["class"] == "tcp-fallback"
    logs = p5.folder / NAMESPACE / "sockets" / "logs"
    assert outcome["finished"] - min(log.stat().st_mtime for log in logs.glob("nccl-*.log")) < 60.0
    starts = [event for event in p5.events("sockets") if event["event"] in ("started", "resumed")]
    assert len(starts) == 1, "the master is not started again"
