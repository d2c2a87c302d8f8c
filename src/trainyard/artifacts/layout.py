"""How the objects of a run are named in the store. Names only; nothing is read or written.

run-<N>/identity.json  run.json  config.yaml  metrics.jsonl  events.jsonl  logs/…
run-<N>/checkpoint-<step>/…          metrics/metrics-<N>.json
run-<N>/records-<version>/…          run.json and the rest, as they were while the run was still going
manifests/run-<N>-manifest.json      and -manifest-2.json, -3 … when the same run goes on
promoted/<name>.json                 which checkpoint of which run has the name
signatures/run-<N>/<SHA-256 of the manifest>.sigstore.json
trainyard-readiness.json             of no run: what a check of the store writes, reads back and removes
"""

import re

PROMOTED = "promoted/"
"""What the pointers to promoted checkpoints start with."""
READINESS = "trainyard-readiness.json"
"""The one object that a check of a store writes; in no folder, where no listing of runs comes across it."""
_RUN_FOLDER = re.compile(r"run-([1-9]\d*)")
_CHECKPOINT = re.compile(r"run-\d+/checkpoint(?:-([0-9]{1,18}))?/")
_MANIFEST = re.compile(r"manifests/run-\d+-manifest(?:-([0-9]{1,18}))?\.json")
_RECORDS = re.compile(r"run-\d+/records-([0-9]{1,18})/")


def run_prefix(run_number: int) -> str:
    """Where everything of a run lies that the run itself wrote."""
    return f"run-{run_number}/"


def identity_key(run_number: int) -> str:
    """The object that says which run owns the number; the first one stored."""
    return f"run-{run_number}/identity.json"


def checkpoint_prefix(run_number: int, step: int | None) -> str:
    """What the keys of a checkpoint's files start with; None is a checkpoint whose step is not known."""
    return f"run-{run_number}/checkpoint/" if step is None else f"run-{run_number}/checkpoint-{step}/"


def records_prefix(run_number: int, version: int) -> str:
    """What the records of a run that is still going start with, as manifest `version` of it lists them.

    They are never written again: what one manifest vouches for no later one takes away.
    """
    return f"run-{run_number}/records-{version}/"


def metrics_key(run_number: int) -> str:
    """The run's metrics as one JSON document."""
    return f"metrics/metrics-{run_number}.json"


def manifest_prefix(run_number: int) -> str:
    """What all manifests of the run start with, and no other run's."""
    return f"manifests/run-{run_number}-manifest"


def manifest_key(run_number: int, version: int = 1) -> str:
    """The run's manifest; versions above 1 supersede the one before."""
    return manifest_prefix(run_number) + (".json" if version == 1 else f"-{version}.json")


def signature_prefix(run_number: int) -> str:
    """What the signatures of all manifests of the run start with."""
    return f"signatures/run-{run_number}/"


def signature_key(run_number: int, manifest_sha256: str) -> str:
    """The signature of the manifest whose bytes have this SHA-256."""
    return f"{signature_prefix(run_number)}{manifest_sha256}.sigstore.json"


def manifest_version_of(key: str) -> int:
    """The version of the manifest with this key; 0 for another key."""
    match = _MANIFEST.fullmatch(key)
    return int(match[1] or 1) if match else 0


def promotion_key(name: str) -> str:
    """The pointer to the checkpoint that was given the name."""
    return f"{PROMOTED}{name}.json"


def run_number_of(folder: str) -> int | None:
    """N for `run-N`, None for any other folder."""
    match = _RUN_FOLDER.fullmatch(folder)
    return int(match[1]) if match else None


def checkpoint_step_of(key: str) -> int | None:
    """The step of the checkpoint that `key` belongs to; None if to none, or to one of unknown step."""
    match = _CHECKPOINT.match(key)
    return int(match[1]) if match and match[1] else None


def belongs_to_checkpoint(key: str) -> bool:
    """Whether the object is part of a checkpoint."""
    return _CHECKPOINT.match(key) is not None


def records_version_of(key: str) -> int | None:
    """The version of the manifest whose records `key` belongs to; None if to none."""
    match = _RECORDS.match(key)
    return int(match[1]) if match else None
