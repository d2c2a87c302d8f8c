"""The names of a run's objects."""

import pytest

from trainyard.artifacts.store import layout


def test_objects_lie_where_the_contract_says() -> None:
    assert layout.checkpoint_prefix(7, 500) == "run-7/checkpoint-500/"
    assert layout.checkpoint_prefix(7, None) == "run-7/checkpoint/"
    assert layout.metrics_key(7) == "metrics/metrics-7.json"
    assert layout.manifest_key(7) == "manifests/run-7-manifest.json"
    assert layout.manifest_key(7, 3) == "manifests/run-7-manifest-3.json"


def test_a_runs_manifests_share_a_prefix_with_no_other_run() -> None:
    assert layout.manifest_key(7, 2).startswith(layout.manifest_prefix(7))
    assert not layout.manifest_key(71).startswith(layout.manifest_prefix(7))


@pytest.mark.parametrize("folder", ["run-0", "run-01", "run-", "run-1x", "run--1", "manifests", "xrun-1"])
def test_other_folders_are_no_runs(folder: str) -> None:
    assert layout.run_number_of(folder) is None


def test_a_runs_folder_has_its_number() -> None:
    assert layout.run_number_of("run-812") == 812


@pytest.mark.parametrize(
    ("key", "step", "belongs"),
    [
        ("run-1/checkpoint-500/.metadata", 500, True),
        ("run-1/checkpoint/latest.pt", None, True),
        ("run-1/checkpoints.txt", None, False),
        ("run-1/logs/checkpoint-5/x", None, False),
    ],
)
def test_checkpoints_are_known_by_their_keys(key: str, step: int | None, belongs: bool) -> None:
    assert layout.checkpoint_step_of(key) == step
    assert layout.belongs_to_checkpoint(key) is belongs


def test_the_records_of_a_running_run_are_known_by_the_manifest_that_lists_them() -> None:
    assert layout.records_prefix(7, 3) == "run-7/records-3/"
    assert layout.records_version_of("run-7/records-3/run.json") == 3
    assert layout.records_version_of("run-7/logs/records-3/run.json") is None


def test_a_manifest_is_known_by_its_key() -> None:
    for end, version in ((1, 1), (2, 13)):
        ended, still_open = layout.manifest_key(7, end), layout.open_manifest_key(7, version)
        assert layout.is_manifest(ended) and not layout.is_open_manifest(ended)
        assert layout.is_manifest(still_open) and layout.is_open_manifest(still_open)
    assert not layout.is_manifest("run-7/run.json")
