"""Write and read `run.json`: a run's identity and provenance, written first, and its outcome, added last.

A run is its key: 128 random bits that its first start makes. Its id and its number in a store are names,
which others may use too. The key is kept in `.identity.json` until there is a `run.json`, because a start
claims its number in the store before it trains. Each start is an attempt, counted from 1.

The facts (git, lock, data, hardware) are passed in; this module only arranges, writes and reads them.
"""

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trainyard import __version__
from trainyard.errors import ConfigError, DamagedFileError, TrainyardError
from trainyard.run.atomic_files import sha256_of_file, write_json_atomically
from trainyard.run.record_models import RunRecord, validate_record
from trainyard.run.run_advice import not_a_run
from trainyard.run.suggested_commands import made_by
from trainyard.run.untrusted_files import parse_json_object, read_bytes

SCHEMA = 1
# These facts, besides the seed, decide a segment's numeric results: code, settings, hardware. Each has the
# words for another one.
ORIGIN_KEYS = {
    "commit": "another commit",
    "diff_sha256": "another working tree",
    "lock_sha256": "another lock",
    "config_sha256": "another config",
    "image_digest": "another image",
    "program_sha256": "another command",
    "data_sha256": "other data",
    "device": "another device",
    "device_name": "another device",
    "threads": "other threads",
    "simd_bits": "another vector width",
    "torch": "another torch",
    "world_size": "another world size",
}
# The placement and the network of the processes.
TOPOLOGY_KEYS = {
    "local_world_size": "other processes per machine",
    "nccl": "another NCCL",
    "nccl_algorithm": "another NCCL algorithm",
    "nccl_protocol": "another NCCL protocol",
}
_SEGMENT_KEYS = (*ORIGIN_KEYS, *TOPOLOGY_KEYS, "computation_sha256", "other_versions")
_RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
_INSTANCE_TYPE = re.compile(r"(ml\.)?[a-z]\w*(-\w+)?\.[0-9a-z-]+")
_IMAGE_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_GIVEN_RUN_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_LONGEST_GRACE_SECONDS = 86400.0
_KEY = re.compile(r"[0-9a-f]{32}")
# Beside the program's files in the pods of a job: which object of Kubernetes the job is.
JOB_FILE = "job.json"
_FILES_IN_PODS = Path("/etc/trainyard")
# Of a start that has claimed its number and has not written `run.json` yet.
_IDENTITY_FILE = ".identity.json"
CI_VARIABLES = {
    "repository": "GITHUB_REPOSITORY",
    "workflow": "GITHUB_WORKFLOW",
    "run_id": "GITHUB_RUN_ID",
    "run_number": "GITHUB_RUN_NUMBER",
    "run_attempt": "GITHUB_RUN_ATTEMPT",
    "event": "GITHUB_EVENT_NAME",
    "ref": "GITHUB_REF",
    "sha": "GITHUB_SHA",
    "actor": "GITHUB_ACTOR",
    "server": "GITHUB_SERVER_URL",
}


def new_run_id() -> str:
    """Return a new identity: local time and four random hex digits, for example `20261120-214501-7c1f`."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def newest_run(runs: Path) -> Path:
    """Return the run that was written to last. Raises ConfigError if there is none."""
    records = sorted(runs.glob("*/run.json"), key=lambda path: path.stat().st_mtime)
    if not records:
        raise ConfigError(f"There is no run in {runs} yet. `make train` starts a run.")
    return records[-1].parent


@dataclass(frozen=True)
class RunIdentity:
    """Which run a directory holds, or will hold."""

    run_id: str
    key: str
    """32 hex digits that no other run has; empty for a record without one."""
    attempt: int = 1
    """Which start of the run this is, counted from 1."""
    stored_as: Mapping[str, int] = field(default_factory=dict)
    """The number of the run in each store, by the store's address."""


def identity_in(directory: Path) -> RunIdentity | None:
    """Return the identity of the run in a directory, with its newest attempt; None without a run.

    Raises TrainyardError for a damaged record.
    """
    run_file = directory / "run.json"
    recorded = _identity_of(read_run(run_file)) if run_file.exists() else None
    begun = _begun_in(directory)
    if begun is not None and recorded is not None and begun.key != recorded.key:
        return recorded  # the directory was replaced, as by a run that was fetched from a store
    return begun or recorded


def begin_identity(directory: Path, run_id: str) -> RunIdentity:
    """Return the identity of the next start in a directory: that of its run, or one with a new key.

    Nothing is written.
    """
    found = identity_in(directory)
    if found is None:
        return RunIdentity(run_id, secrets.token_hex(16))
    is_first = not (directory / "run.json").exists() and not found.stored_as
    attempt = found.attempt if is_first else found.attempt + 1
    return replace(found, key=found.key or secrets.token_hex(16), attempt=attempt)


def keep_identity(directory: Path, identity: RunIdentity) -> None:
    """Write the identity of a start, which `write_identity` then records.

    A record that is there gets it now, so that what stores the run meanwhile is of this attempt.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_json_atomically(directory / _IDENTITY_FILE, asdict(identity))
    if (directory / "run.json").exists():
        run = read_run(directory / "run.json")
        write_json_atomically(directory / "run.json", {**run, **asdict(identity)})


def _begun_in(directory: Path) -> RunIdentity | None:
    """Return the identity of a start that has not recorded it yet; None without one."""
    try:
        content = read_bytes(directory / _IDENTITY_FILE, links=False)
    except OSError:
        return None
    return _identity_of(parse_json_object(content, str(directory / _IDENTITY_FILE)))


def _identity_of(record: Mapping[str, Any]) -> RunIdentity | None:
    """Return the identity in a record; None if it names no run."""
    run_id, key, attempt = record.get("run_id"), record.get("key", ""), record.get("attempt", 1)
    stored_as = record.get("stored_as", {})
    if not isinstance(run_id, str) or not isinstance(attempt, int) or not isinstance(stored_as, dict):
        return None
    known = key if isinstance(key, str) and _KEY.fullmatch(key) else ""
    return RunIdentity(run_id, known, max(1, attempt), stored_as)


def choose_run_id(
    directory: Path | None, environment: Mapping[str, str] = os.environ, *, several: bool = False
) -> str:
    """Return the identity of a run: that of the one in the directory, else TRAINYARD_RUN_ID, else a new one.

    A new one is the name of the directory, if it has the form of one. The identity becomes the name of a
    folder. Raises ConfigError when the given one cannot, or when several nodes (`several`), or the workers of
    another launcher, would each choose their own.
    """
    with contextlib.suppress(TrainyardError, OSError):
        if directory is not None and (found := identity_in(directory)) is not None:
            return found.run_id
    if given := environment.get("TRAINYARD_RUN_ID"):
        if _GIVEN_RUN_ID.fullmatch(given):
            return given
        raise ConfigError(
            f"TRAINYARD_RUN_ID: {given[:140]!r} is not a name for a run. Use at most 128 letters, digits, "
            "dots, dashes and underscores, and no dot at the beginning."
        )
    if directory is not None and _RUN_ID.fullmatch(directory.name):
        return directory.name
    if directory is None and (several or "LOCAL_RANK" in environment):
        raise ConfigError("Several processes must agree on one run: name it with --run-dir.")
    return new_run_id()


def grace_needed(directory: Path | None) -> float:
    """Return the seconds from a signal to the end that the last segment measured; 0 if there was none."""
    with contextlib.suppress(OSError, TrainyardError):
        if directory is not None:
            outcome = read_run(directory / "run.json").get("outcome", {})
            return min(float(outcome.get("grace_seconds_needed", 0.0)), _LONGEST_GRACE_SECONDS)
    return 0.0


def ci_facts(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the workflow run's facts from GitHub's variables; empty outside GitHub Actions."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return {}
    return {
        name: environment[variable] for name, variable in CI_VARIABLES.items() if environment.get(variable)
    }


def ci_facts_at(commit: object, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the workflow run's facts for a record of code at `commit`.

    The workflow run's own commit is omitted unless it is that one: a checkout may be of another commit, or
    of another repository.
    """
    found = ci_facts(environment)
    return {name: value for name, value in found.items() if name != "sha" or value == commit}


def run_address(ci: Mapping[str, str]) -> str:
    """Return the URL of the workflow run of `ci_facts`; empty if unknown."""
    if not all(ci.get(key) for key in ("server", "repository", "run_id")):
        return ""
    return quote(f"{ci['server']}/{ci['repository']}/actions/runs/{ci['run_id']}", safe=":/")


def collect_provenance(git: Mapping[str, Any], *, lock: Path | None, config_file: Path) -> dict[str, Any]:
    """Return the origin of code and environment: git facts, the lock's digest, CI and image."""
    return {
        "version": __version__,
        "config_file": str(config_file),
        "git": dict(git),
        "lock_sha256": sha256_of_file(lock) if lock is not None and lock.is_file() else None,
        "ci": ci_facts_at(git.get("commit")),
        "instance_type": instance_type(),
        "requests": pod_requests(),
        "command_line": made_by() or None,
        "owner": os.environ.get("TRAINYARD_OWNER"),
        "job": job_facts(),
        **image_facts(),
    }


def instance_type(
    environment: Mapping[str, str] = os.environ, product: Path = Path("/sys/class/dmi/id/product_name")
) -> str | None:
    """Return the instance type of this machine, such as `p5.48xlarge`; None if it is not one of EC2.

    TRAINYARD_INSTANCE_TYPE names it where the machine does not.
    """
    name = environment.get("TRAINYARD_INSTANCE_TYPE", "")
    with contextlib.suppress(OSError, ValueError):
        name = name or product.read_text(encoding="ascii").strip()
    return name if _INSTANCE_TYPE.fullmatch(name) else None


def pod_requests(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the GPUs, CPUs and memory that this pod requests of its machine; empty outside of pods."""
    with contextlib.suppress(ValueError):
        found = json.loads(environment.get("TRAINYARD_REQUESTS", ""))
        return found if isinstance(found, dict) else {}
    return {}


def job_facts(folder: Path = _FILES_IN_PODS) -> dict[str, Any]:
    """Return kind, namespace, name and uid of the job that this pod is of; empty outside of pods.

    They are written into the pod's files as soon as the job exists. A pod that starts before that, and one
    of a shared RayCluster, which has no files of the job, do not have them.
    """
    with contextlib.suppress(OSError, TrainyardError):
        return parse_json_object(read_bytes(folder / JOB_FILE), str(folder / JOB_FILE))
    return {}


def image_facts(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the image that this runs in, from TRAINYARD_IMAGE_DIGEST: its digest, and its name if given.

    The variable holds `sha256:…` or `name@sha256:…`, because a container cannot find out its own digest.
    Raises ConfigError for anything else before training, not when the run is to be proven.
    """
    given = environment.get("TRAINYARD_IMAGE_DIGEST", "")
    if not given:
        return {}
    name, _, digest = given.rpartition("@")
    if not _IMAGE_DIGEST.fullmatch(digest):
        raise ConfigError(
            f"TRAINYARD_IMAGE_DIGEST: {given[:140]!r} is not a digest of an image. Use sha256: and 64 hex "
            "digits, or the image's name, @, and that; a tag can move."
        )
    return {"image_digest": digest} | ({"image_name": name} if name else {})


def write_identity(path: Path, run_id: str, provenance: Mapping[str, Any]) -> None:
    """Write the `run.json` of a start: identity and provenance, no outcome. Unknown facts are omitted.

    A run that is there keeps its key, and its attempt is the next one, unless this start has kept its own.
    """
    identity = _begun_in(path.parent) or begin_identity(path.parent, run_id)
    named = {name: value for name, value in asdict(replace(identity, run_id=run_id)).items() if value}
    known = {key: value for key, value in provenance.items() if value not in (None, {}, "")}
    write_json_atomically(path, {"schema": SCHEMA, **named, "created": time.time(), **known})
    (path.parent / _IDENTITY_FILE).unlink(missing_ok=True)


def read_run(path: Path) -> dict[str, Any]:
    """Return the content of `run.json`, which must be a regular file and not a link.

    Raises ConfigError when it is missing, TrainyardError when it is damaged or a part has the wrong type.
    """
    try:
        content = read_bytes(path, links=False)
    except FileNotFoundError:
        raise not_a_run(path.parent) from None
    return parse_run(content, str(path))


def parse_run(content: bytes, name: str) -> dict[str, Any]:
    """Parse a `run.json`, called `name` in messages. Raises DamagedFileError as `read_run` does."""
    value = parse_json_object(content, name)
    try:
        validate_record(RunRecord, value)
    except ValueError as error:
        raise DamagedFileError(f"{name}: {error}, so it is not the record of a run") from None
    return value


def history_of(run: Mapping[str, Any], *, until: int) -> list[dict[str, Any]]:
    """Return the segments of `run` up to step `until`, oldest first, each with its end and its origin.

    Consecutive segments with the same origin are merged. The record alone is enough to repeat a run only if
    all segments have the same origin.
    """
    segments: list[dict[str, Any]] = []
    for segment in (*run.get("history", []), {"until": until, **read_origin(run)}):
        step = min(int(segment["until"]), until)
        if segments and read_origin(segments[-1]) == read_origin(segment):
            segments.pop()
        if step and (not segments or segments[-1]["until"] < step):
            segments.append({**segment, "until": step})
    return segments


def read_origin(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the origin of a run or of a segment in its history, as far as known."""
    data = record.get("data")
    known = (
        {"data_sha256": data["fingerprint"]} if isinstance(data, Mapping) and "fingerprint" in data else {}
    )
    parts = (record.get("hardware"), record.get("git"), known, record)
    flat = {key: value for part in parts if isinstance(part, Mapping) for key, value in part.items()}
    return {key: flat[key] for key in _SEGMENT_KEYS if key in flat}


def write_outcome(path: Path, outcome: Mapping[str, Any] | None) -> None:
    """Write `outcome` into `run.json`; None removes it when a finished run resumes."""
    run = {key: value for key, value in read_run(path).items() if key != "outcome"}
    if outcome is not None:
        run["outcome"] = dict(outcome)
    write_json_atomically(path, run)
