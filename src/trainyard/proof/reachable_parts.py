"""Find the parts of the proof that a planned run cannot reach, by judging the best records it could leave.

    PlannedRun ──its best possible records──> prove ──> the parts that do not hold

There is no table of what can be proven: `proof.prove` answers, so a part that it learns to judge is reachable
here too. Facts that only the run shows, such as its loss or the state of its repository, count as good.
"""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from trainyard.config.kind import RunKind
from trainyard.proof.proof import Configuration, Proof, prove
from trainyard.watch.network_record import EVENT, network_event
from trainyard.watch.network_verdict import Communicator, Expectation, NetworkFacts

if TYPE_CHECKING:
    from trainyard.artifacts.verify.inspection import Inspection

_RUN_ID, _SHA256, _COMMIT, _STEPS = "planned", "0" * 64, "0" * 40, 1
_ROW = {"step": _STEPS, "loss": 1.0}
_OVER_TCP = "compute.network=tcp trains over TCP, which is slower and can be proven"
_NO_RECORD = "no run directory is kept for a command of your own"
_EXPLAINED = "docs/jobs.md#what-is-proven-of-other-programs says why"


@dataclass(frozen=True)
class PlannedRun:
    """The facts of a plan that decide which parts of the proof can hold."""

    kind: RunKind
    nodes: int
    processes: int
    """Processes per node."""
    network: str
    """`compute.network` as the run's own configuration will have it."""
    store: str = ""
    """Empty: the run is not stored."""
    is_recorded: bool = True
    """Whether a run directory is kept; there is none for a command of the user's own."""
    keeps_network_log: bool = True
    """Whether every process keeps NCCL's log; a run on CPUs and the driver of Ray have none."""


@dataclass(frozen=True)
class UnreachablePart:
    """A part of the proof that will not hold, however well the run goes."""

    name: str
    why: str
    fix: str
    """The change with which it can hold, or where the reason is explained."""

    def to_json(self) -> dict[str, str]:
        return {"name": self.name, "why": self.why, "fix": self.fix}


def unreachable_parts(run: PlannedRun) -> tuple[UnreachablePart, ...]:
    """Return the parts that would not hold on the best possible records of `run`, in order."""
    return tuple(
        UnreachablePart(part.name, part.evidence if run.is_recorded else _NO_RECORD, _fix_of(run, part.name))
        for part in _best_proof(run).failing
    )


def _fix_of(run: PlannedRun, name: str) -> str:
    """Return the first change that makes the part hold; it is tried, not assumed."""
    changes = (
        (replace(run, network="tcp"), _OVER_TCP),
        (replace(run, store="file:///store"), "name a store with artifacts.store"),
    )
    for changed, fix in changes:
        if name in _best_proof(changed).holding:
            return fix
    return _EXPLAINED


def _best_proof(run: PlannedRun) -> Proof:
    if not run.is_recorded:
        return prove({}, (), (), _inspection(is_stored=False))
    saved = {"event": "checkpoint_saved", "step": _STEPS, "manifest_sha256": _SHA256}
    finished = {"event": "finished", "step": _STEPS, "status": "succeeded"}
    found = _inspection(is_stored=bool(run.store))
    settings = {
        "compute": {"network": run.network},
        "training": {"max_steps": _STEPS, "seed": 0},
        "program": {"steps": _STEPS},
        "monitoring": {"log_steps": 1},
    }
    network = ({"event": EVENT, **_network(run)},) if run.keeps_network_log else ()
    events = ({"event": "started", "step": 0}, *network, saved, finished)
    return prove(_facts(run), (_ROW,), events, found, configuration=Configuration(settings=settings))


def _facts(run: PlannedRun) -> dict[str, Any]:
    """Return the content of the best possible `run.json`."""
    facts: dict[str, Any] = {
        "run_id": _RUN_ID,
        "git": {"commit": _COMMIT, "dirty": False},
        "lock_sha256": _SHA256,
        "config_sha256": _SHA256,
        "seed": 0,
        "plan": {"steps": _STEPS, "log_steps": 1},
        "hardware": {"world_size": run.nodes * run.processes, "local_world_size": run.processes},
    }
    saved = {"step": _STEPS, "manifest_sha256": _SHA256}
    outcome = {"status": "succeeded", "exit_code": 0, "steps": _STEPS, "checkpoint": saved}
    outcome |= {"first_loss": _ROW["loss"], "final_loss": _ROW["loss"]}
    if run.kind is not RunKind.TRAINER:
        facts["recipe"] = run.kind.value
    if run.kind is RunKind.PROGRAM:
        facts |= {"program": {}, "program_sha256": _SHA256, "data": {"fingerprint": _SHA256}}
    elif run.kind is RunKind.TRAINER:  # the trainer of this repository records these too
        facts["data"] = {"fingerprint": _SHA256}
        outcome["state_sha256"] = {"model": _SHA256, "optimizer": _SHA256}
    return {**facts, "outcome": outcome}


def _network(run: PlannedRun) -> dict[str, Any]:
    """Return the best possible record of the network: every channel over EFA with GPUDirect."""
    world = run.nodes * run.processes
    ranks, hosts = f"0-{world - 1}", tuple(map(str, range(run.nodes)))
    facts = NetworkFacts(
        processes=world,
        shown=world,
        nodes=run.nodes,
        channels={"efa+": 1},
        communicators=(Communicator("", world, ranks, ranks),),
        joined_hosts=hosts,
    )
    return network_event([facts], Expectation(requested=run.network))


def _inspection(*, is_stored: bool) -> "Inspection":
    """Return the inspection of a store in which everything was found to be equal, or of none."""
    checkpoint = SimpleNamespace(manifest_sha256=_SHA256, run_id=_RUN_ID, step=_STEPS, problem=None)
    objects = {"objects_total": 1, "objects_verified": 1, "problems": (), "ok": True, "unlisted_objects": ()}
    verification = SimpleNamespace(run_id=_RUN_ID, records={}, compared="", **objects)
    found = SimpleNamespace(
        verification=verification if is_stored else None,
        checkpoints={_STEPS: checkpoint} if is_stored else {},
        trouble=None,
        taken=False,
        damaged=(),
        on_disk={},
    )
    return cast("Inspection", found)
