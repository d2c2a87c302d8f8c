"""The findings as plain data: the JSON of `trainyard cluster`, which the reports read too."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trainyard.cluster.admission import outlook
from trainyard.cluster.capacity import Capacity, Room
from trainyard.cluster.fitness import on_hyperpod
from trainyard.cluster.hyperpod import Figures
from trainyard.cluster.snapshot import Snapshot
from trainyard.plan.instances import plain_type

if TYPE_CHECKING:
    from trainyard.jobs.job_spec import JobSpec

Json = dict[str, Any]


def cluster_record(snapshot: Snapshot, context: str) -> Json:
    """The cluster that was queried."""
    return {
        "context": context,
        "server": snapshot.server,
        "version": snapshot.version,
        "region": snapshot.region,
    }


def plan_record(job: "JobSpec") -> Json:
    """The job that it was judged for."""
    return {
        "shape": job.shape,
        "nodes": job.nodes,
        "gpus_per_node": job.gpus_per_node,
        "instance_type": plain_type(job.instance_type),
        "kind": job.kind,
        "namespace": job.namespace,
        "queue": job.queue,
        "image": job.image,
        "volume": job.claim,
    }


def usage_record(
    capacity: Capacity, job: "JobSpec", snapshot: Snapshot, *, use: Mapping[str, Figures]
) -> Json:
    """The free capacity, whether the gang fits, who holds the rest, and when the queue would admit it.

    `use` has the measured figures of each node.
    """
    expected = outlook(snapshot, job, tuple(room.fitness for room in capacity.rooms))
    return {
        "fits": capacity.fit.value,
        "places_free": capacity.places,
        "places": capacity.places_empty,
        "gpus": capacity.gpus,
        "gpus_free": capacity.gpus_free,
        "whole_nodes_free": list(capacity.whole_nodes),
        "nodes": [
            {**room_record(room), "use": use.get(room.fitness.node.name, {})} for room in capacity.rooms
        ],
        "holders": [asdict(holder) for holder in capacity.holders],
        "waiting": [asdict(holder) for holder in capacity.waiting],
        "queue": {"when": expected.when.value, "evidence": expected.evidence},
        "may_grow": snapshot.may_grow,
        "unknown": capacity.unseen,
    }


def room_record(room: Room) -> Json:
    """One node."""
    fitness = room.fitness
    node = fitness.node
    return {
        "name": node.name,
        "instance_type": node.instance_type,
        "zone": node.zone,
        "hyperpod": on_hyperpod(node),
        "fit": fitness.fit,
        "gpus": fitness.gpus,
        "gpus_expected": fitness.expected_gpus,
        "gpus_free": room.gpus_free,
        "efa": fitness.efa,
        "efa_expected": fitness.expected_efa,
        "efa_free": room.efa_free,
        "free": {name: amount / 1000 for name, amount in sorted(room.free.items())},
        "problems": [obstacle.evidence for obstacle in fitness.obstacles],
        "doubts": [doubt.evidence for doubt in fitness.doubts],
    }
