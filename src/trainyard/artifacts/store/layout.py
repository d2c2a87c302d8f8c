"""Name the objects of a run in the store. Names only; nothing is read or written.

ids/<run id>.json                    the run's number and key: an id belongs to one run
run-<N>/attempt-<K>.json             the run's start K, from 2: earlier ones store nothing more
run-<N>/identity.json  run.json  config.yaml  metrics.jsonl  events.jsonl  evaluations.jsonl  logs/…
run-<N>/checkpoint-<step>/…          metrics/metrics-<N>.json
run-<N>/records-<version>/…          run.json and other records, as they were while the run was still going
manifests/run-<N>-manifest.json      the run that ended; -manifest-2.json, -3 … when it resumes and ends again
manifests/run-<N>-open-<version>.json   the run while it was still going
promoted/<name>.json                 the checkpoint that has the name
evaluations/run-<N>.jsonl            evaluations of its checkpoints that were done after the run was stored
notes/run-<N>.json                   notes and tags that people gave to the run; in no manifest
signatures/run-<N>/<SHA-256 of the manifest>.sigstore.json
trainyard-readiness.json             belongs to no run: a check of the store writes and reads it,
trainyard-readiness.small, .parts    and these two, which it sends in the same way as files of a run
"""

import re
from urllib.parse import quote

PROMOTED = "promoted/"
"""Prefix of the pointers to promoted checkpoints."""
READINESS = "trainyard-readiness.json"
READINESS_SMALL, READINESS_PARTS = "trainyard-readiness.small", "trainyard-readiness.parts"
"""The objects that a check of a store writes; they are in no folder, so no listing of runs finds them."""
_RUN_FOLDER = re.compile(r"run-([1-9][0-9]{0,14})")
_CHECKPOINT = re.compile(r"run-[0-9]+/checkpoint(?:-([0-9]{1,18}))?/")
_ATTEMPT = re.compile(r"run-[0-9]+/attempt-([1-9][0-9]{0,8})\.json")
_MANIFEST = re.compile(r"manifests/run-[0-9]+-(manifest|open)(?:-([0-9]{1,18}))?\.json")
_RECORDS = re.compile(r"run-[0-9]+/records-([0-9]{1,18})/")


def run_prefix(run_number: int) -> str:
    """Return the prefix of everything that the run itself wrote."""
    return f"run-{run_number}/"


def identity_key(run_number: int) -> str:
    """Return the key of the claim, which says which run owns the number; it is the first object stored."""
    return f"run-{run_number}/identity.json"


def id_key(run_id: str) -> str:
    """Return the key of the record that says which run, and which number, the id belongs to."""
    return f"ids/{quote(run_id, safe='')}.json"


def attempt_prefix(run_number: int) -> str:
    """Return the prefix of the records of the run's later starts."""
    return f"run-{run_number}/attempt-"


def attempt_key(run_number: int, attempt: int) -> str:
    """Return the key of the record of one start of the run."""
    return f"{attempt_prefix(run_number)}{attempt}.json"


def attempt_of(key: str) -> int:
    """Return the number of the start that the key records; 0 for another key."""
    match = _ATTEMPT.fullmatch(key)
    return int(match[1]) if match else 0


def checkpoint_prefix(run_number: int, step: int | None) -> str:
    """Return the prefix of a checkpoint's files; None means that its step is unknown."""
    return f"run-{run_number}/checkpoint/" if step is None else f"run-{run_number}/checkpoint-{step}/"


def records_prefix(run_number: int, version: int) -> str:
    """Return the prefix of the records that manifest `version` of a run that is still going lists.

    They are never written again, so no later sync removes what a manifest lists.
    """
    return f"run-{run_number}/records-{version}/"


def metrics_key(run_number: int) -> str:
    """Return the key of the run's metrics as one JSON document."""
    return f"metrics/metrics-{run_number}.json"


def evaluations_key(run_number: int) -> str:
    """Return the key of the evaluations that were done after the run was stored."""
    return f"evaluations/run-{run_number}.jsonl"


def manifest_prefix(run_number: int) -> str:
    """Return the prefix of all manifests of the run and of no other run."""
    return f"manifests/run-{run_number}-"


def manifest_key(run_number: int, end: int = 1) -> str:
    """Return the key of the manifest of the run's `end`th end; those above 1 supersede the one before."""
    return manifest_prefix(run_number) + ("manifest.json" if end == 1 else f"manifest-{end}.json")


def open_manifest_key(run_number: int, version: int) -> str:
    """Return the key of manifest `version` of the run, put while it was still going."""
    return f"{manifest_prefix(run_number)}open-{version}.json"


def notes_key(run_number: int) -> str:
    """Return the key of the notes that people gave to the run."""
    return f"notes/run-{run_number}.json"


def signature_prefix(run_number: int) -> str:
    """Return the prefix of the signatures of all manifests of the run."""
    return f"signatures/run-{run_number}/"


def signature_key(run_number: int, manifest_sha256: str) -> str:
    """Return the key of the signature of the manifest whose bytes have this SHA-256."""
    return f"{signature_prefix(run_number)}{manifest_sha256}.sigstore.json"


def is_manifest(key: str) -> bool:
    """Return whether it is the key of a manifest."""
    return _MANIFEST.fullmatch(key) is not None


def is_open_manifest(key: str) -> bool:
    """Return whether it is the key of a manifest of a run that was still going."""
    match = _MANIFEST.fullmatch(key)
    return match is not None and match[1] == "open"


def promotion_key(name: str) -> str:
    """Return the key of the pointer to the checkpoint that has the name."""
    return f"{PROMOTED}{name}.json"


def run_number_of(folder: str) -> int | None:
    """Return N for `run-N`, None for any other folder."""
    match = _RUN_FOLDER.fullmatch(folder)
    return int(match[1]) if match else None


def checkpoint_step_of(key: str) -> int | None:
    """Return the step of the checkpoint to which `key` belongs; None without a checkpoint or a known step."""
    match = _CHECKPOINT.match(key)
    return int(match[1]) if match and match[1] else None


def belongs_to_checkpoint(key: str) -> bool:
    """Return whether the object is part of a checkpoint."""
    return _CHECKPOINT.match(key) is not None


def records_version_of(key: str) -> int | None:
    """Return the version of the manifest to whose records `key` belongs; None if to none."""
    match = _RECORDS.match(key)
    return int(match[1]) if match else None
