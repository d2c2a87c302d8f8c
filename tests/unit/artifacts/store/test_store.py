"""The store of a run: the names of its objects, their checksums, and the threads that transfer them."""

import base64
import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainyard.artifacts.store import layout
from trainyard.artifacts.store.object_store import checksum_agrees
from trainyard.artifacts.store.store_address import store_settings
from trainyard.artifacts.store.worker_threads import map_items
from trainyard.errors import ConfigError


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


def b64(content: bytes) -> str:
    return base64.b64encode(hashlib.sha256(content).digest()).decode()


def test_a_full_object_checksum_speaks_for_the_bytes() -> None:
    checksum = {"algorithm": "SHA256", "type": "FULL_OBJECT", "value": b64(b"abc")}
    assert checksum_agrees(checksum, hashlib.sha256(b"abc").hexdigest()) is True
    assert checksum_agrees(checksum, hashlib.sha256(b"abd").hexdigest()) is False


def test_another_checksum_speaks_only_when_it_is_on_record() -> None:
    checksum = {"algorithm": "CRC64NVME", "type": "FULL_OBJECT", "value": "x"}
    sha256 = hashlib.sha256(b"abc").hexdigest()
    assert checksum_agrees(checksum, sha256) is None
    assert checksum_agrees({}, sha256) is None
    assert checksum_agrees(checksum, sha256, checksum) is True
    assert checksum_agrees(checksum, sha256, checksum | {"value": "y"}) is False
    assert checksum_agrees(checksum, sha256, checksum | {"algorithm": "CRC32"}) is None


def config(tmp_path: Path, text: str) -> Path:
    (tmp_path / "config.yaml").write_text(text)
    return tmp_path


def test_the_command_line_comes_before_the_configuration(tmp_path: Path) -> None:
    run = config(tmp_path, "artifacts: {store: 's3://theirs', encryption: none}\n")
    assert store_settings(run, url=None, encryption=None) == ("s3://theirs", "none")
    assert store_settings(run, url="s3://ours", encryption="aws:kms") == ("s3://ours", "aws:kms")


def test_encryption_is_asked_for_unless_it_is_switched_off(tmp_path: Path) -> None:
    assert store_settings(None, url="s3://ours", encryption=None)[1] == "AES256"


@pytest.mark.parametrize("text", ["", "artifacts: {store: null}\n", "artifacts: 3\n", "- a\n"])
def test_no_store_anywhere_is_a_usage_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"give --store, or set artifacts\.store"):
        store_settings(config(tmp_path, text), url=None, encryption=None)


def test_a_configuration_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml:(\d+:)? not valid YAML"):
        store_settings(config(tmp_path, "a: ["), url=None, encryption=None)


def test_a_run_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the run directory does not exist"):
        store_settings(tmp_path / "none", url="s3://ours", encryption=None)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as found:
        yield found


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_after_a_failure_no_thread_is_at_work(pool: ThreadPoolExecutor, error: type[BaseException]) -> None:
    begun, ended, at_work = list[int](), list[int](), threading.Barrier(2)

    def item(number: int) -> None:
        begun.append(number)
        if number < 2:
            at_work.wait(30)
        if number == 0:
            raise error
        threading.Event().wait(0.3)
        ended.append(number)

    with pytest.raises(error):
        map_items(pool, item, range(9))
    assert len(begun) <= 3  # the thread that failed may take one more
    assert sorted([*ended, 0]) == sorted(begun)
