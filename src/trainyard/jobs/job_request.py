"""The request for a job: what is asked for beside the configuration, and what was seen of the cluster."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainyard import __version__
from trainyard.cluster.capacity import choose_zone
from trainyard.cluster.demand import Demand
from trainyard.cluster.image_digest import pin_digest
from trainyard.cluster.job_preflight import room_for
from trainyard.cluster.snapshot import Volume
from trainyard.cluster.verdict import Verdict
from trainyard.config.load import load_config
from trainyard.config.registries import EVERY_RECIPE, PRESETS
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.jobs.kinds import KINDS
from trainyard.plan.node_room import NodeRoom
from trainyard.programs.presets.preset import load_preset, with_settings
from trainyard.run.atomic_files import sha256_of_file


@dataclass(frozen=True)
class JobRequest(Demand):
    """The options of a job beside its configuration, and the facts that were read from the cluster."""

    name: str = ""
    """Empty: derived from the model's name."""
    run_id: str = ""
    """The id of the run, which no other job has; empty: the name."""
    processes_per_node: int | None = None
    """None: one per GPU."""
    shared_claim: bool = False
    """The cluster shows that several nodes may write to the claim."""
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


def load_job_config(
    path: Path, changes: Sequence[str], *, recipe: str = "", program_settings: Sequence[str] = ()
) -> Config:
    """Return the configuration of a job, with its recipe and the settings of its program.

    Raises ConfigError.
    """
    if recipe and recipe not in EVERY_RECIPE:
        raise ConfigError(f"--recipe {recipe[:60]!r}: expected one of {', '.join(EVERY_RECIPE)}")
    config = load_config(path, [*changes, *([f"recipe={recipe}"] if recipe else [])]).config
    return with_settings(config, program_settings)


def settle_request(request: JobRequest, config: Config, *, namespace: str = "") -> JobRequest:
    """Return the request with the configuration's values where it has none of its own.

    `namespace` is that of the kubeconfig's context.
    """
    found = request.with_settings(config.cluster, namespace=namespace)
    is_preset = config.recipe in PRESETS
    needs_ray = found.kind == "auto" and is_preset and load_preset(config.recipe).launcher == "ray"
    return replace(
        found,
        kinds=tuple(KINDS.values()),
        name=found.name or name_from(config.model.name),
        kind="rayjob" if needs_ray else found.kind,
    )


def observe_cluster(request: JobRequest, verdict: Verdict, *, creator: str) -> JobRequest:
    """Return the request with what the preflight saw; the image has the digest of its registry, if known."""
    snapshot = verdict.facts.snapshot
    modes = snapshot.volume.access_modes if isinstance(snapshot.volume, Volume) else ()
    return replace(
        request,
        kind=verdict.facts.kind.name,
        image=pin_digest(request.image, snapshot.image),
        room=room_for(snapshot, request),
        zone=choose_zone(snapshot, request, job=request.name),
        shared_claim="ReadWriteMany" in modes,
        creator=creator,
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
