"""The request for a job: its command line beside the configuration, and what was observed of its cluster."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard import __version__
from trainyard.config.load import load_config
from trainyard.config.registries import (
    DEFAULT_JOB_KIND,
    EVERY_RECIPE,
    PRESETS,
)
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.plan.node_room import NodeRoom
from trainyard.programs.presets import load_preset, with_settings
from trainyard.run.atomic_files import sha256_of_file


@dataclass(frozen=True)
class JobRequest:
    """The values of the command line that the configuration does not have."""

    name: str = ""
    """Empty: derived from the model's name."""
    namespace: str = "default"
    kind: str = DEFAULT_JOB_KIND
    image: str = ""
    nodes: int = 1
    gpus_per_node: int | None = None
    """None: all GPUs of a node."""
    processes_per_node: int | None = None
    """None: one per GPU."""
    instance_type: str = ""
    queue: str = ""
    priority_class: str = ""
    secret: str = ""
    token_secret: str = ""
    """`NAME` or `NAME:KEY` of a Secret with a token for the Hugging Face Hub."""
    claim: str = ""
    shared_claim: bool = False
    """The cluster shows that several nodes may write to the claim."""
    mount_path: str = ""
    tolerations: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """The user's environment variables."""
    command: tuple[str, ...] = ()
    """The user's own program; empty means the trainer."""
    ray_cluster: str = ""
    auto_retry: int = 0
    creator: str = ""
    """Who sends it, by the API server; empty if that is not known."""
    provenance: Mapping[str, str] = field(default_factory=dict)
    room: NodeRoom | None = None
    """The resources of the cluster's nodes; None if no cluster was queried."""
    zone: str | None = ""
    """As in `JobPlan`, for a job that EFA joins."""


def load_job_config(given: Mapping[str, Any]) -> tuple[Config, str | None]:
    """Return the configuration for a command line, with its recipe, settings and requested kind.

    Raises ConfigError.
    """
    if given["recipe"] and given["recipe"] not in EVERY_RECIPE:
        raise ConfigError(f"--recipe {given['recipe'][:60]!r}: expected one of {', '.join(EVERY_RECIPE)}")
    recipe = [f"recipe={given['recipe']}"] if given["recipe"] else []
    config = load_config(given["config"], [*given["set"], *recipe]).config
    needs_ray = config.recipe in PRESETS and load_preset(config.recipe).launcher == "ray"
    on_ray = needs_ray and (given["kind"] or config.cluster.kind) == "auto"
    return with_settings(config, given["program_set"]), "rayjob" if on_ray else given["kind"]


def make_job_request(
    given: Mapping[str, Any], config: Config, *, image: str, origin: Mapping[str, str]
) -> JobRequest:
    """Return the request of a command line (`given`), which overrides the configuration."""
    cluster = config.cluster
    return JobRequest(
        name=given["job_name"] or name_from(config.model.name),
        namespace=given["namespace"] or cluster.namespace or "default",
        kind=(given["kind"] or cluster.kind).replace("auto", DEFAULT_JOB_KIND),
        image=image,
        nodes=given["num_nodes"],
        gpus_per_node=given["gpu_per_node"],
        processes_per_node=given["nproc_per_node"],
        instance_type=given["instance_type"],
        queue=given["queue"] or cluster.queue or "",
        priority_class=given["priority_class"],
        secret=given["secret"],
        token_secret=given["hf_token_secret"],
        claim=given["volume"],
        mount_path=given["checkpoint_path"],
        tolerations=tuple(given["tolerate"]),
        environment=dict(given["env"]),
        command=tuple(given["own"]),
        ray_cluster=given["ray_cluster"],
        auto_retry=given["auto_retry"],
        provenance=origin,
    )


def name_from(text: str) -> str:
    """Return a job name derived from the name of a model."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"job-{plain}".strip("-"))[:40].rstrip("-")


def provenance_of(git: Mapping[str, Any], lock: Path) -> dict[str, str]:
    """The origin of a job: facts of git, the lock's digest, our version; unknown facts are left out."""
    facts = {
        "version": __version__,
        "commit": str(git.get("commit", "")),
        "dirty": str(git["dirty"]).lower() if "dirty" in git else "",
        "lock-sha256": sha256_of_file(lock) if lock.is_file() else "",
    }
    return {name: value for name, value in facts.items() if value}
