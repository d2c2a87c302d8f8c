"""Facts about this machine: the standard library's, records about an end, and EC2's notices."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest
from tests.answering import answering
from tests.cases import each_case

from trainyard.gateways import instance_notices, local_machine, system_record
from trainyard.gateways.system_record import SystemRecord
from trainyard.watch.failure_logs.failure_explanation import FailureFacts, explain_logs


def test_free_space_of_a_folder_that_does_not_exist_yet_is_that_of_its_parent(tmp_path: Path) -> None:
    wanted = shutil.disk_usage(tmp_path).free
    assert abs(local_machine.free_bytes(tmp_path / "not" / "yet") - wanted) < 1_000_000_000


def test_the_size_of_a_folder_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a").write_bytes(b"x" * 10)
    (tmp_path / "deep" / "b").write_bytes(b"x" * 5)
    assert local_machine.measure_path(tmp_path) == 15
    assert local_machine.measure_path(tmp_path / "a") == 10
    assert local_machine.measure_path(tmp_path / "missing") == 0


def test_the_version_counts_that_an_import_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2.0", "1.0"):
        info = tmp_path / version / "Some_Thing-1.dist-info/METADATA"
        info.parent.mkdir(parents=True)
        info.write_text(f"Metadata-Version: 2.1\nName: Some_Thing\nVersion: {version}\n")
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / version)])
    assert local_machine.installed_versions()["some-thing"] == "2.0"


def test_a_compiler_is_searched_for_as_torch_does(tmp_path: Path) -> None:
    cxx = "clang++" if sys.platform == "darwin" else "g++"
    for on_gpu, there, asked, missing in (
        (True, "gcc", None, []),
        (True, "clang", None, []),
        (True, cxx, None, ["gcc or clang"]),
        (False, cxx, None, []),
        (False, "gcc", None, [cxx]),
        (True, "gcc", "icx", ["icx"]),
        (False, "mine", "mine", []),
    ):
        folder = tmp_path / f"{on_gpu}-{there}-{asked}"
        folder.mkdir()
        (folder / there).write_text("#!/bin/sh\n")
        (folder / there).chmod(0o755)
        environment = {"PATH": str(folder)} | ({} if asked is None else {"CC": asked, "CXX": asked})
        found = local_machine.missing_for_compiling(on_gpu=on_gpu, environment=environment)
        assert [name for name in found if "headers" not in name] == missing


def test_a_python_without_headers_cannot_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
    [*_, headers] = local_machine.missing_for_compiling(on_gpu=True)
    assert headers == f"Python's headers ({tmp_path / 'Python.h'})"
    (tmp_path / "Python.h").touch()
    assert not [name for name in local_machine.missing_for_compiling(on_gpu=True) if "headers" in name]


GB = 10**9


def meminfo(root: Path, *, total: int, available: int, swap: int = 0) -> None:
    (root / "proc" / "self").mkdir(parents=True)
    lines = (("MemTotal", total), ("MemAvailable", available), ("SwapFree", swap))
    text = "".join(f"{name}:{size // 1024:>12} kB\n" for name, size in lines)
    (root / "proc" / "meminfo").write_text(f"{text}HugePages_Total: 0\nDirectMap\n")


def group(root: Path, path: str, **numbers: int | str) -> None:
    """A control group: `limit`, `usage`, `caches`, `swap_max`, `swap_used`."""
    folder = root / "sys/fs/cgroup" / path.strip("/")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{numbers.get('limit', 'max')}\n")
    (folder / "memory.current").write_text(f"{numbers.get('usage', 0)}\n")
    half = int(numbers.get("caches", 0)) // 2
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {half}\nactive_file {half}\n")
    (folder / "memory.swap.max").write_text(f"{numbers.get('swap_max', 'max')}\n")
    (folder / "memory.swap.current").write_text(f"{numbers.get('swap_used', 0)}\n")


def test_a_machine_without_control_groups_has_the_kernels_figures(tmp_path: Path) -> None:
    meminfo(tmp_path, total=64 * GB, available=50 * GB, swap=8 * GB)
    found = local_machine.main_memory(tmp_path)
    assert found.total_bytes == pytest.approx(64 * GB, abs=1024)
    assert found.available_bytes == pytest.approx(50 * GB, abs=1024)
    assert found.swap_bytes == pytest.approx(8 * GB, abs=1024)


def test_without_proc_all_memory_counts_as_available(tmp_path: Path) -> None:
    found = local_machine.main_memory(tmp_path)
    everything = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert (found.total_bytes, found.available_bytes, found.swap_bytes) == (everything, everything, 0)


@each_case("own", ["/", "/docker/abc", "/a/b/c"])
@each_case("limited", ["/", "/docker/abc", "/a", "/a/b/c", "/elsewhere"])
@each_case("limit", [4 * GB, 400 * GB, None])
def test_any_group_up_to_the_root_can_have_the_tightest_limit(
    tmp_path: Path, own: str, limited: str, limit: int | None
) -> None:
    meminfo(tmp_path, total=64 * GB, available=50 * GB)
    (tmp_path / "proc/self/cgroup").write_text(f"1:cpu:/x\n0::{own}\n")
    for path in (own, "/"):
        group(tmp_path, path)
    more = {} if limit is None else {"limit": limit}
    group(tmp_path, limited, usage=3 * GB, caches=2 * GB, **more)
    found = local_machine.main_memory(tmp_path)
    inside = PurePosixPath(limited) in (PurePosixPath(own), *PurePosixPath(own).parents)
    binds = inside and limit == 4 * GB
    assert found.total_bytes == pytest.approx(4 * GB if binds else 64 * GB, abs=1024)
    assert found.available_bytes == pytest.approx(3 * GB if binds else 50 * GB, abs=1024)


def test_inside_a_container_the_path_in_proc_may_be_the_hosts(tmp_path: Path) -> None:
    meminfo(tmp_path, total=64 * GB, available=50 * GB)
    (tmp_path / "proc/self/cgroup").write_text("0::/docker/of-the-host\n")
    group(tmp_path, "/", limit=2 * GB, usage=5 * GB)
    found = local_machine.main_memory(tmp_path)
    assert (found.total_bytes, found.available_bytes) == (2 * GB, 0)


@pytest.mark.parametrize(("most", "used", "free"), [("max", 0, 8 * GB), (3 * GB, GB, 2 * GB), (0, 0, 0)])
def test_swap_is_limited_by_the_control_group(tmp_path: Path, most: int | str, used: int, free: int) -> None:
    meminfo(tmp_path, total=64 * GB, available=50 * GB, swap=8 * GB)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    group(tmp_path, "/", limit=4 * GB, swap_max=most, swap_used=used)
    assert local_machine.main_memory(tmp_path).swap_bytes == pytest.approx(free, abs=1024)


@each_case("text", ["", "nonsense", "0", "0:", "0::", "::::", "1:memory", "\ufffd\n\n"])
def test_malformed_files_of_the_kernel_are_ignored(tmp_path: Path, text: str) -> None:
    meminfo(tmp_path, total=64 * GB, available=50 * GB)
    (tmp_path / "proc/self/cgroup").write_text(text)
    assert local_machine.main_memory(tmp_path).total_bytes == pytest.approx(64 * GB, abs=1024)


def test_a_driver_is_found_by_its_device(tmp_path: Path) -> None:
    for name in ("null", "nvidiactl", "nvidia0", "dxg"):
        (tmp_path / name).touch()
        assert local_machine.has_nvidia_driver(tmp_path) is (name != "null")
        (tmp_path / name).unlink()


def test_the_version_of_torch_is_read_without_importing_it() -> None:
    import torch

    code = (
        "import sys; from trainyard.gateways.local_machine import installed_torch; print(installed_torch())\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{(torch.__version__.partition('+')[0], torch.version.cuda)}\n"


def test_a_torch_that_is_not_installed_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert local_machine.installed_torch() == (None, None)
    broken = SimpleNamespace(origin=str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: broken)
    assert local_machine.installed_torch() == (None, None)


@pytest.mark.parametrize("file", ["job/memory.events", "memory.events"])
def test_kills_of_this_cgroup_since_the_start_are_counted(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").write_text("0::/job\n")
    counter, text = tmp_path / file, "oom 3\noom_kill {}\n"
    counter.parent.mkdir(exist_ok=True)
    counter.write_text(text.format(2))
    monkeypatch.setattr(system_record, "_CGROUPS", tmp_path)
    monkeypatch.setattr(system_record, "_OWN_CGROUP", tmp_path / "own")
    record = SystemRecord(())
    assert record.changes(was_killed=True) == () and record.memory_kills() == 0
    counter.write_text(text.format(5))
    assert "ended 3 processes of this cgroup" in record.changes(was_killed=True)[0]
    counter.unlink()
    assert record.memory_kills() is None and record.changes(was_killed=True) == ()


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SystemRecord((tmp_path,)).changes(was_killed=True) == (), "nothing happened here"
    for blocks, inodes, words in ((0, 9, "0.0 MB free"), (9_999, 0, "no inodes"), (9_999, 9, "")):
        room = type("Room", (), {"f_bavail": blocks, "f_frsize": 4096, "f_files": 9, "f_favail": inodes})
        monkeypatch.setattr(os, "statvfs", lambda _, room=room: room)
        found = SystemRecord((tmp_path,)).changes(was_killed=False)
        assert (words in found[0] and str(tmp_path) in found[0]) if words else found == ()


def test_the_kernels_kills_count_only_for_a_program_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    xid, out_of_memory = "NVRM: Xid (PCI:0000:44:00)", "Out of memory: Killed process 7"
    pipe = [f"6,1,99000000,-;{xid}: 79, pid=1", f"6,2,99000001,-;{out_of_memory}"]
    pipe += [f"6,0,1,-;{xid}: 48, of an earlier hour"]

    def read(_: int, __: int) -> bytes:
        if not records:
            raise BlockingIOError
        return records.pop().encode()

    monkeypatch.setattr(system_record, "_KERNEL_LOG", "/dev/null")
    monkeypatch.setattr(os, "read", read)
    monkeypatch.setattr(time, "monotonic", lambda: 50.0)
    for was_killed, count in ((True, 2), (False, 1)):
        records = list(pipe)
        assert len(SystemRecord(()).changes(was_killed=was_killed)) == count


SPOT = json.dumps({"action": "terminate", "time": "2026-11-29T10:00:00Z"})


def events(seconds: float, state: str = "active") -> str:
    begins = time.strftime("%d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + seconds))
    return json.dumps([{"NotBefore": begins, "Code": "system-reboot", "State": state}])


# What the service has: the spot notice, the events; and how the only sentence begins, empty for none.
ANSWERS: dict[str, tuple[str | None, str | None, str]] = {
    "nothing": (None, None, ""),
    "spot": (SPOT, "[]", "spot interruption notice of EC2: terminate at 2026"),
    "maintenance now": (None, events(60), "maintenance notice of EC2: system-reboot from"),
    "maintenance next week": (None, events(600_000), ""),
    "maintenance that was": (None, events(-60, "completed"), ""),
    "another format": ("<html>", "[]", ""),
}


def test_each_notice_that_is_due_is_a_fact_and_says_that_a_retry_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, str | None] = {}

    def answer(method: str, path: str, _body: object, headers: Mapping[str, str]) -> tuple[int, bytes | None]:
        is_known = headers.get("X-aws-ec2-metadata-token") == "secret"
        text = "secret" if method == "PUT" else given.get(path) if is_known else None
        return (404, None) if text is None else (200, text.encode())

    vendor = tmp_path / "sys_vendor"
    vendor.write_text("Amazon EC2\n")
    monkeypatch.setattr(instance_notices, "_VENDOR", vendor)
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    with answering(answer) as address:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", address)
        for name, (spot, planned, begins) in ANSWERS.items():
            given["/latest/meta-data/spot/instance-action"] = spot
            given["/latest/meta-data/events/maintenance/scheduled"] = planned
            found = instance_notices.instance_notices()
            assert [each.startswith(begins) for each in found] == [True] * bool(begins), name
            if found:
                failure = explain_logs([], facts=FailureFacts(137, system=found))
                assert (str(failure.klass), failure.retry) == ("preempted", "yes"), name
        given["/latest/meta-data/spot/instance-action"] = SPOT
        vendor.write_text("Another\n")
        assert instance_notices.instance_notices() == (), "elsewhere nobody is asked"
