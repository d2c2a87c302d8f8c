"""What the machine records about an end: kills for memory, lines of the kernel, full disks."""

import os
import time
from pathlib import Path

import pytest

from trainyard.gateways import system_record
from trainyard.gateways.system_record import SystemRecord


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
