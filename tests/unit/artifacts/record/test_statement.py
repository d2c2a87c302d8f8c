"""The provenance in a manifest, as an in-toto statement."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from trainyard.artifacts.record.manifest import parse_run_manifest
from trainyard.artifacts.record.statement import resolved_config, statement_problems
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.config.load import config_sha256, dump_yaml, load_config
from trainyard.run.identity import write_identity

SMOKE = Path(__file__).resolve().parents[4] / "configs" / "smoke.yaml"


@pytest.fixture
def stored(store: Store, folder: Path, make_run: Any) -> dict[str, Any]:
    """The manifest of a run whose facts are all known."""
    run, config = make_run(), load_config(SMOKE, []).config
    run.config_file.write_text(dump_yaml(config))
    facts = {
        "git": {"commit": "3f2c1ab" * 5, "dirty": True, "diff_sha256": "d" * 64},
        "lock_sha256": "1" * 64,
        "config_sha256": config_sha256(config),
        "data": {"fingerprint": "f" * 64},
        "image_digest": "sha256:" + "e" * 64,
        "hardware": {"device": "cuda", "device_name": "NVIDIA H200"},
        "ci": {"run_id": "99", "repository": "o/r"},
        "parent": {"checkpoint": "/c", "manifest_sha256": "a" * 64},
    }
    write_identity(run.run_file, "run-run", facts)
    sync_run(store, run, 1)
    value: dict[str, Any] = json.loads((folder / "manifests/run-1-manifest.json").read_bytes())
    return value


def test_the_statement_names_every_object_and_where_the_run_came_from(stored: dict[str, Any]) -> None:
    statement = stored["statement"]
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    digests = {entry["name"]: entry["digest"]["sha256"] for entry in statement["subject"]}
    assert digests == {entry["key"]: entry["sha256"] for entry in stored["objects"]}
    predicate = statement["predicate"]
    assert predicate["git"] == {"commit": "3f2c1ab" * 5, "dirty": True, "diff_sha256": "d" * 64}
    assert predicate["config"]["training"]["seed"] == load_config(SMOKE, []).config.training.seed
    assert predicate["parent"]["manifest_sha256"] == "a" * 64
    assert predicate["runner"] == {"run_id": "99", "repository": "o/r"}
    kept = {"lock_sha256", "config_sha256", "data", "image_digest", "hardware"}
    assert {key: predicate[key] for key in kept} == {key: stored["provenance"][key] for key in kept}


def test_a_later_statement_names_the_manifest_before(store: Store, folder: Path, make_run: Any) -> None:
    run = make_run()
    sync_run(store, run, 1)
    make_run(steps=(300,))
    sync_run(store, run, 1)
    value = json.loads((folder / "manifests/run-1-manifest-2.json").read_bytes())
    assert value["statement"]["predicate"]["parent_manifest"] == value["supersedes"]
    assert "config" not in value["statement"]["predicate"]  # the run has no digest of a config on record


def test_another_config_than_the_one_on_record_is_not_claimed() -> None:
    assert resolved_config({"a": 1}, {"config_sha256": "0" * 64}) == {}
    assert resolved_config({"a": float("nan")}, {}) == {}


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("subject", 0, "digest", "sha256"), "0" * 64, "another subject"),
        (("predicateType",), "urn:x", "another predicateType"),
        (("predicate", "git", "commit"), "0" * 40, "another git"),
        (("predicate", "added"), 1, "another added"),
        (("predicate", "config", "training", "seed"), -1, "another configuration than the run's record"),
        (("predicate", "config"), 5, "another config"),
        (("predicate",), None, "has no predicate"),
    ],
)
def test_a_statement_that_says_otherwise_is_named(
    stored: dict[str, Any], path: tuple[Any, ...], value: Any, words: str
) -> None:
    changed = copy.deepcopy(stored)
    place = changed["statement"]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    problems = statement_problems(parse_run_manifest(json.dumps(changed).encode(), "m"))
    assert problems
    assert words in problems[0]


def test_a_stored_manifest_with_another_statement_does_not_verify(
    stored: dict[str, Any], store: Store, folder: Path
) -> None:
    assert verify_run(store, 1, depth=Depth.LISTING).ok
    stored["statement"]["predicate"]["git"]["dirty"] = False
    (folder / "manifests/run-1-manifest.json").write_text(json.dumps(stored))
    found = verify_run(store, 1, depth=Depth.LISTING)
    assert found.problems == ("run-1: the statement has another git than the manifest",)
