"""Run the checks of a cluster as the script does, in this process."""

import importlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from trainyard.cluster.cluster_query import ClusterQuery
from trainyard.cluster.verdict import Verdict, verdict_record
from trainyard.command.cluster_options import job_values
from trainyard.config.cluster import ClusterConfig
from trainyard.gateways.kubernetes.api import Api
from trainyard.gateways.kubernetes.cluster_connection import access_by_kubeconfig
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.kinds import KINDS
from trainyard.run.untrusted_files import read_yaml

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "manage_cluster.py"


@cache
def script() -> ModuleType:
    return importlib.import_module("trainyard.commands.cluster")


def look_at(kubeconfig: Path, *options: str, call_seconds: float = 20.0) -> ClusterQuery:
    api = Api(access_by_kubeconfig(kubeconfig, "", read=read_yaml, environment={}), call_seconds=call_seconds)
    job = demand_of(["--kubeconfig", str(kubeconfig), *options], namespace=api.access.namespace)
    return ClusterQuery(api, job, tuple(KINDS.values()))


def demand_of(
    options: Sequence[str], settings: ClusterConfig | None = None, *, namespace: str = "", **given: Any
) -> JobSpec:
    """The job of a command line, of a configuration, and of values that no option has."""
    values = {**job_values(script().parse_args(["check", *options])), **given}
    return JobSpec(**values).with_settings(settings or ClusterConfig(), namespace=namespace)


def verdict_of(kubeconfig: Path, *options: str) -> Verdict:
    return look_at(kubeconfig, *options).judge(lambda **_: None)


def without_target(text: str) -> str:
    """Return a fix without the options that name the cluster; each of its commands must have them."""
    assert not re.search(r"\b(kubectl|trainyard cluster \w+) (?!--kubeconfig )", text), text
    return re.sub(r" --kubeconfig \S+( --namespace \S+)?", "", text)


def findings_of(kubeconfig: Path, *options: str) -> list[dict[str, str]]:
    """The findings of the checks that were not skipped."""
    return judged(verdict_of(kubeconfig, *options))


def judged(verdict: Verdict) -> list[dict[str, str]]:
    """The findings of the checks that were not skipped."""
    found: list[dict[str, Any]] = verdict_record(verdict)["findings"]
    return [entry for entry in found if entry["severity"] != "skipped"]
