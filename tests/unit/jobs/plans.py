"""Configurations, requests and plans for the tests of jobs."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from trainyard.config.load import dump_yaml, load_config
from trainyard.config.schema import Config
from trainyard.jobs import recipes
from trainyard.jobs.job_planning import plan_job
from trainyard.jobs.job_spec import JobSpec, Program, token_variable
from trainyard.jobs.kinds import KINDS
from trainyard.plan.instances import CATALOGUE

ROOT = Path(__file__).resolve().parents[3]
IMAGE = "registry.invalid/train@sha256:" + "a" * 64
PROVENANCE = {"version": "0.1.0", "commit": "b" * 40, "dirty": "false", "lock-sha256": "c" * 64}
STRATEGIES: dict[str, tuple[str, ...]] = {
    "single": (),
    "ddp": ("compute.strategy=ddp",),
    "fsdp": ("compute.strategy=fsdp",),
    "hsdp": ("compute.strategy=hsdp",),
}
NODES = (1, 2, 4, 16, 128)
EACH_SHAPE = [*{(known.gpus, known.efa, known.rdma): known for known in CATALOGUE}.values()]
"""One instance type for each number of GPUs and kind and number of network interfaces that types have."""
_YAML: dict[str, str] = {}


def _dump_once(config: Config) -> str:
    """The YAML of a configuration, which takes more than half of the time of a plan."""
    key = repr(config.to_plain())
    if key not in _YAML:
        _YAML[key] = dump_yaml(config)
    return _YAML[key]


recipes.dump_yaml = _dump_once  # type: ignore[attr-defined]


@cache
def config(*overrides: str) -> Config:
    """The configuration for an image that has what each kind needs."""
    return load_config(ROOT / "configs" / "smoke.yaml", ["cluster.pod.hyperpodrun=true", *overrides]).config


def request(
    *,
    command: tuple[str, ...] = (),
    token_secret: str = "",
    processes_per_node: int | None = None,
    **changes: Any,
) -> JobSpec:
    given: dict[str, Any] = {
        "name": "llama",
        "namespace": "team",
        "image": IMAGE,
        "instance_type": "p5.48xlarge",
        "claim": "fsx",
        "provenance": PROVENANCE,
        "program": Program("", command),
        "secrets": token_variable(token_secret),
        "processes_per_node": processes_per_node or 0,
        **changes,
    }
    return JobSpec(**given)


def plan(*overrides: str, **changes: Any) -> JobSpec:
    return plan_job(config(*(overrides or ("compute.strategy=ddp",))), request(**changes))


def instance_for(kind: str, name: str) -> str:
    """Return the type as the kind names it: HyperPod's operator takes HyperPod's names only."""
    return f"ml.{name}" if kind == "hyperpod" else name


def objects(wanted: JobSpec) -> list[dict[str, Any]]:
    return list(KINDS[wanted.kind].render(wanted).all)


def templates(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every template of a pod below `value`."""
    if isinstance(value, dict):
        if "containers" in (value.get("spec") or {}):
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            yield from templates(entry)


def pod_specs(body: Any) -> list[dict[str, Any]]:
    """Return every specification of a pod in an object."""
    return [template["spec"] for template in templates(body)]


def containers(body: Any) -> list[dict[str, Any]]:
    """Return every container in an object, except those that only submit a job to Ray."""
    found = (container for spec in pod_specs(body) for container in spec["containers"])
    return [container for container in found if container["name"] != "ray-job-submitter"]
