"""A sync through a proxy that injects faults ends complete, or with exit code 4; never falsely complete."""

import os
import random
import re
import signal
import socket
import struct
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from tests import warm_start
from tests.listener import Listener, pass_on, read_message
from tests.waiting import wait_for

from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import Selection
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.errors import ServiceError, VerificationError

MANY = 36
"""Files of a checkpoint: more than are sent at once."""
FAULTS = (
    *("cut the request", "cut the answer", "reset", "500", "503", "stall"),
    *("damage the request", "damage the answer"),
)
REFUSALS: dict[str, tuple[Any, ...]] = {"500": ("500",), "503": ("503",), "expired": ("400", "ExpiredToken")}
CALL_SECONDS = 1.0
SEED = int(os.environ.get("TRAINYARD_FAULT_SEED", "1"))


class FaultyProxy(Listener):
    """Passes requests to an S3 server, one per connection, and spoils some; seeded."""

    def __init__(self, upstream: str, *, seed: int) -> None:
        self._upstream = upstream
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.rate = 0.0
        """Share of the requests that are spoilt."""
        self.faults: tuple[str, ...] = FAULTS
        self.for_parts: list[str] = []
        """The faults of the next requests that send a part; after them, chance decides."""
        self.requests_left = 1_000_000
        """After this many requests the endpoint is down: connections are closed at once."""
        self.parts_stored = 0
        self.expired = ""
        """The access key whose session is over."""
        self.log: list[tuple[str, str]] = []
        """Each request's first line, and its fault."""
        super().__init__()

    def _choose(self, head: bytes) -> str:
        with self._lock:
            self.requests_left -= 1
            spoilt = self._random.random() < self.rate
            fault = self._random.choice(self.faults) if spoilt else "pass"
            line = head.split(b"\r\n", 1)[0].decode()
            if self.for_parts and "partNumber=" in line:
                fault = self.for_parts.pop(0)
            fault = "down" if self.requests_left < 0 else fault
            self.log.append((line, fault))
            return fault

    def serve(self, client: socket.socket) -> None:
        client.settimeout(20)
        head, body = read_message(client)
        if not head:
            return
        if self.expired and f"Credential={self.expired}/".encode() in head:
            client.sendall(refusal(*REFUSALS["expired"]))
            return
        fault = self._choose(head)
        if fault in REFUSALS:
            client.sendall(refusal(*REFUSALS[fault]))
            return
        if fault == "reset":  # not the orderly end of a connection
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if fault in ("down", "cut the request", "reset"):
            return
        if fault == "stall":
            time.sleep(3 * CALL_SECONDS)
            return
        if fault == "damage the request" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        answer = pass_on(self._upstream, head, body)
        self.parts_stored += b"partNumber=" in head and answer[9:12] == b"200"
        if fault == "damage the answer":
            answer = self._damaged(answer)
        client.sendall(answer[: len(answer) // 2] if fault == "cut the answer" else answer)

    def _damaged(self, answer: bytes) -> bytes:
        """Return the answer with one bit of its body flipped at a random place."""
        start = answer.index(b"\r\n\r\n") + 4
        if start == len(answer):
            return answer
        with self._lock:
            at = self._random.randrange(start, len(answer))
        return answer[:at] + bytes([answer[at] ^ 1]) + answer[at + 1 :]


def refusal(status: str, code: str = "") -> bytes:
    """A refusal of S3."""
    code = code or ("SlowDown" if status == "503" else "InternalError")
    body = f"<Error><Code>{code}</Code><Message>spoilt</Message></Error>".encode()
    return (
        f"HTTP/1.1 {status} Refused\r\nDate: {formatdate(usegmt=True)}\r\n".encode()
        + f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )


@pytest.fixture
def proxy(
    seaweedfs: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(seaweedfs.url, seed=getattr(request, "param", SEED))
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    yield proxy
    proxy.close()


@pytest.fixture
def store(proxy: FaultyProxy, seaweedfs: Any) -> Any:
    return open_store(f"s3://{seaweedfs.new_bucket()}", call_seconds=CALL_SECONDS)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_once_in_three_requests(fault: str, proxy: FaultyProxy, store: Any, make_run: Any) -> None:
    run = make_run(steps=(100,), size=20_000)
    proxy.faults, proxy.rate = (fault,), 0.34
    try:
        complete = not sync_run(store, run, 1).problems
    except (ServiceError, VerificationError):
        complete = False
    proxy.rate = 0
    found = verify_run(store, 1, depth=Depth.FULL, run_directory=run)
    assert found.ok or not complete, found.problems
    assert {spoilt for _, spoilt in proxy.log} == {"pass", fault}, "this seed spoils nothing"
    assert sync_run(store, run, 1).problems == ()
    assert verify_run(store, 1, depth=Depth.FULL, run_directory=run).ok


@pytest.mark.parametrize("requests", [0, 5, 14])
def test_an_endpoint_that_goes_down_leaves_no_manifest_and_a_command_to_go_on(
    requests: int, proxy: FaultyProxy, store: Any, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    run = make_run(steps=(100, 200), size=20_000)
    brittle = open_store(store.url, call_seconds=CALL_SECONDS)
    proxy.requests_left = requests
    with pytest.raises(ServiceError) as refused:
        sync_run(brittle, run, None)
    message = str(refused.value)
    assert "No usable answer from" in message
    assert f"Nothing is lost: checkpoints and records are in {run.path}" in message
    assert f"trainyard store sync --run-dir {run.path} --store {store.url} --run-number" in message
    proxy.requests_left = 1_000_000
    assert not verify_run(store, 1, depth=Depth.LISTING).ok
    assert sync_run(store, run, None).run_number == 1
    assert verify_run(store, 1, depth=Depth.FULL, run_directory=run).ok


def test_a_part_that_is_cut_or_damaged_is_sent_again(
    proxy: FaultyProxy, store: Any, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard.gateways.s3.store.PARTS_FROM_BYTES", 32 << 20)
    store = open_store(store.url, call_seconds=20)
    run = make_run(steps=(100,), size=34_000_000)
    proxy.for_parts = ["cut the request", "damage the request", "pass", "damage the request"]
    sync_run(store, run, 1)
    assert not proxy.for_parts
    assert verify_run(store, 1, depth=Depth.FULL, run_directory=run).ok


@pytest.mark.parametrize("files", [1, MANY])
def test_a_restore_through_faults_is_whole_or_refused_and_goes_on(
    proxy: FaultyProxy, store: Any, make_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    monkeypatch.setattr("trainyard.gateways.s3.store.RANGE_BYTES", 1 << 20)
    run = make_run(steps=(100, 200), size=3_000_000 // files, files=files)
    sync_run(store, run, 1)
    proxy.rate = 0.2
    attempts = 0
    while not (tmp_path / "back").exists():
        attempts += 1
        assert attempts < 20
        try:
            restore(store, Selection(1), tmp_path / "back")
        except (ServiceError, VerificationError) as error:
            assert "Nothing is under the final name" in str(error)
    assert {fault for _, fault in proxy.log} > {"pass"}, "this seed spoils nothing"
    assert files_of(tmp_path / "back") == files_of(run.path)


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_sync_lists_the_run_and_its_metrics_once_and_uploads_nothing(
    proxy: FaultyProxy, store: Any, make_run: Any
) -> None:
    run = make_run(steps=(100, 200), size=20_000)
    sync_run(store, run, 1)
    proxy.log.clear()
    sync_run(store, run, 1)
    lines = [line for line, _ in proxy.log]
    assert [line.partition(" ")[0] for line in lines].count("PUT") == 0
    listed = [unquote(re.findall(r"prefix=([^&]*)", line)[0]) for line in lines if "list-type=2" in line]
    # Twice, whether the run is continued elsewhere: at the start, and before a manifest would be put.
    manifests = "manifests/run-1-"
    assert listed == [*("run-1/attempt-", manifests, "run-1/", "metrics/metrics-1.json", "run-1/attempt-")]
    assert len(lines) <= 9


def write_credentials(path: Path, key: str) -> None:
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")


@pytest.mark.parametrize("renewed", [True, False])
def test_credentials_that_expire_in_the_middle_of_a_file_are_renewed(
    renewed: bool, moto: Any, make_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """moto takes any key; the proxy refuses that of a session that is over."""
    proxy, credentials = FaultyProxy(moto.url, seed=1), tmp_path / "credentials"
    write_credentials(credentials, "FIRST")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    monkeypatch.setattr("trainyard.gateways.s3.store.PARTS_FROM_BYTES", 32 << 20)
    store, run = (
        open_store(f"s3://{moto.new_bucket()}", call_seconds=20),
        make_run(steps=(100,), size=34_000_000),
    )
    answer = proxy._choose

    def choose(head: bytes) -> str:
        if b"partNumber=3" in head and not proxy.expired:
            proxy.expired = "FIRST"
            write_credentials(credentials, "SECOND" if renewed else "FIRST")
        return answer(head)

    monkeypatch.setattr(proxy, "_choose", choose)
    if not renewed:
        with pytest.raises(ServiceError, match="the session has expired"):
            sync_run(store, run, 1)
        return
    assert sync_run(store, run, 1).problems == ()
    assert verify_run(store, 1, depth=Depth.FULL, run_directory=run).ok
    started = [line for line, _ in proxy.log if "?uploads" in line and line.startswith("POST")]
    assert len(started) == 1, "the upload did not go on where it was"


SYNC = """
    import sys
    from pathlib import Path
    from trainyard.artifacts.upload.sync import sync_run
    from trainyard.artifacts.store.store_address import open_store
    from trainyard.gateways.s3 import store
    from trainyard.run.directory import RunDirectory

    store.PARTS_FROM_BYTES = 32 << 20
    sync_run(open_store(sys.argv[1]), RunDirectory(Path(sys.argv[2])), 1)
"""


def test_a_sync_that_is_killed_in_the_middle_of_a_file_is_completed_by_the_next_one(
    proxy: FaultyProxy, store: Any, make_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard.gateways.s3.store.PARTS_FROM_BYTES", 32 << 20)
    run, answer = make_run(steps=(100,), size=34_000_000), proxy._choose
    (tmp_path / "sync.py").write_text(textwrap.dedent(SYNC))
    sync = warm_start.Popen([sys.executable, str(tmp_path / "sync.py"), store.url, str(run.path)])

    def choose(head: bytes) -> str:
        if b"partNumber=3" in head:
            wait_for(lambda: proxy.parts_stored >= 1, "a part to be stored")
            sync.kill()
        return answer(head)

    with monkeypatch.context() as patch:
        patch.setattr(proxy, "_choose", choose)
        assert sync.wait(60) == -signal.SIGKILL
    found = verify_run(store, 1, depth=Depth.LISTING)
    assert found.problems == ("manifests/run-1-manifest.json: missing, so run 1 cannot be verified",)
    assert sync_run(open_store(store.url, call_seconds=20), run, 1).problems == ()
    assert verify_run(store, 1, depth=Depth.LISTING, run_directory=run).ok
