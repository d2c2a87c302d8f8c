"""awscrt sends and fetches many small files on real servers; boto3 moves the others."""

import base64
import contextlib
import hashlib
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from trainyard.artifacts.record.manifest import ManifestObject
from trainyard.artifacts.restore import restore as restoring
from trainyard.artifacts.restore.download import Downloader
from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import Selection
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.errors import PermissionRefusedError, ServiceError
from trainyard.gateways.s3 import small_files
from trainyard.gateways.s3.bucket import Bucket
from trainyard.gateways.s3.small_files import LEAST_FILES, SMALL_BYTES, pattern_of
from trainyard.run.atomic_files import sha256_of_file

FILES = LEAST_FILES + 8
ODD_NAMES = (
    "a b",
    "ä",
    "a+b",
    "a%20b",
    "a~b",
    "100%",
    "a#b",
    "a?b=c",
    "a&b",
    "a'b",
    "日本",
    "a=b",
    "(a)",
    "a:b@c",
)


@pytest.fixture(params=["seaweedfs"])  # moto is in test_s3_store.py
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    endpoint = request.getfixturevalue(request.param)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.url)
    return endpoint


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the files that awscrt moved."""
    keys, move = list[str](), small_files.move

    def counting(pattern: Any, files: Any, on_moved: Any, **options: Any) -> bool:
        def note(file: Any, headers: Mapping[str, str]) -> None:
            keys.append(file.key)
            on_moved(file, headers)

        return move(pattern, files, note, **options)

    monkeypatch.setattr("trainyard.gateways.s3.bucket.move", counting)
    return keys


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_files(folder: Path, names: tuple[str, ...], size: int) -> dict[str, Path]:
    folder.mkdir()
    found = {name: folder / str(number) for number, name in enumerate(names)}
    for path in found.values():
        path.write_bytes(os.urandom(size))
    return found


def send(store: Any, files: Mapping[str, Path]) -> set[str]:
    """Store the files as a sync does; return the keys that became visible."""
    sent = set[str]()
    uploads = [store.stage(path, key, metadata={"run-number": "1"}) for key, path in files.items()]
    store.send_small(uploads, sent.add)
    for upload in uploads:
        stored = upload.commit()
        expected = base64.b64encode(hashlib.sha256(files[stored.key].read_bytes()).digest()).decode()
        assert stored.checksum["value"] == expected
        assert stored.etag
    return sent


def fetch(store: Any, files: list[tuple[str, int, Path]]) -> set[str]:
    """Fetch the files; return the keys that arrived."""
    keys, came = {path: key for key, _, path in files}, set[str]()
    store.fetch_small(files, lambda path: came.add(keys[path]))
    return came


def test_a_run_of_many_small_files_goes_and_comes_whole(
    server: Any, make_run: Any, moved: list[str], tmp_path: Path
) -> None:
    store, run = open_store(f"s3://{server.new_bucket()}/a/b"), make_run(size=3000, files=FILES)
    report = sync_run(store, run, 1)
    assert report.problems == ()
    assert report.sent == report.objects - 1  # without the claim of the number
    assert len(moved) == 2 * FILES  # of each checkpoint, its files and `.metadata`, less the first
    assert len(set(moved)) == len(moved)
    assert verify_run(store, 1, depth=Depth.FULL, run_directory=run).ok
    moved.clear()
    found = restore(store, Selection(1), tmp_path / "back")
    assert files_of(tmp_path / "back") == files_of(run.path)
    assert len(moved) == 2 * (FILES + 1)
    assert (found.kept, found.fetched_bytes) == (0, found.bytes)


@pytest.mark.parametrize("size", [0, 1, 3000, SMALL_BYTES])
def test_each_key_and_size_goes_and_comes(size: int, server: Any, moved: list[str], tmp_path: Path) -> None:
    bucket = server.new_bucket()
    store = open_store(f"s3://{bucket}/pre fix/ü")
    names = (*ODD_NAMES, *(f"run-1/n{number}" for number in range(FILES)))
    files = write_files(tmp_path / "files", names, size)
    assert send(store, files) == set(files)
    assert len(moved) == len(names) - 1
    for name, path in files.items():
        found = server.client.get_object(Bucket=bucket, Key=f"pre fix/ü/{name}")
        assert found["Body"].read() == path.read_bytes()
        assert found["Metadata"] == {"run-number": "1"}
    (tmp_path / "back").mkdir()
    places = {name: tmp_path / "back" / path.name for name, path in files.items()}
    came = fetch(store, [(name, size, path) for name, path in places.items()])
    assert came == (set(names) if size else set())  # an empty object has no range to ask for
    assert all(places[name].read_bytes() == files[name].read_bytes() for name in came)


def test_of_an_object_that_is_larger_than_expected_one_byte_more_comes(server: Any, tmp_path: Path) -> None:
    store = open_store(f"s3://{server.new_bucket()}")
    names = tuple(f"n{number}" for number in range(FILES))
    send(store, write_files(tmp_path / "files", names, 5000))
    places = {name: tmp_path / name for name in names}
    assert fetch(store, [(name, 100, path) for name, path in places.items()]) == set(names)
    assert {path.stat().st_size for path in places.values()} == {101}


@pytest.mark.parametrize("damage", ["other bytes", "longer", "shorter", "missing", "empty"])
@pytest.mark.parametrize("which", [0, 20, FILES - 1])
def test_a_damaged_object_is_named_and_nothing_is_restored(
    damage: str, which: int, server: Any, make_run: Any, moved: list[str], tmp_path: Path
) -> None:
    bucket = server.new_bucket()
    store, run = open_store(f"s3://{bucket}"), make_run(steps=(100,), size=3000, files=FILES)
    sync_run(store, run, 1)
    key = f"run-1/checkpoint-100/__{which}_0.distcp"
    content = (run.checkpoint(100) / f"__{which}_0.distcp").read_bytes()
    if damage == "missing":
        server.client.delete_object(Bucket=bucket, Key=key)
    else:
        changed = {"other bytes": content[:-1] + b"?", "longer": content + b"x", "shorter": content[:-1]}
        server.client.put_object(Bucket=bucket, Key=key, Body=changed.get(damage, b""))
    moved.clear()
    with pytest.raises(Exception, match=re.escape(key)) as refused:
        restore(store, Selection(1), tmp_path / "back")
    assert type(refused.value).__name__ == "VerificationError"
    assert len(moved) > LEAST_FILES
    assert not (tmp_path / "back").exists()


def test_files_that_an_earlier_attempt_left_are_compared_and_not_fetched_again(
    server: Any, make_run: Any, moved: list[str], tmp_path: Path
) -> None:
    bucket = server.new_bucket()
    store, run = open_store(f"s3://{bucket}"), make_run(steps=(100,), size=3000, files=2 * FILES)
    sync_run(store, run, 1)
    half = tmp_path / ".back.restoring" / "checkpoints" / "step-00000100"
    half.mkdir(parents=True)
    for number in range(FILES):
        content = (run.checkpoint(100) / f"__{number}_0.distcp").read_bytes()
        (half / f"__{number}_0.distcp").write_bytes(content[: 1000 if number == 1 else None])
    moved.clear()
    found = restore(store, Selection(1), tmp_path / "back")
    assert files_of(tmp_path / "back") == files_of(run.path)
    assert len(moved) == FILES + 1
    assert found.kept == FILES - 1


def test_a_file_that_changes_while_it_is_sent_is_never_stored_as_what_it_was(
    server: Any, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    if "moto" in request.node.callspec.id:
        pytest.skip("moto refuses no wrong checksum")
    store = open_store(f"s3://{server.new_bucket()}")
    files = write_files(tmp_path / "files", tuple(f"n{number}" for number in range(FILES)), 3000)
    uploads = {key: store.stage(path, key, metadata={}) for key, path in files.items()}
    files["n5"].write_bytes(b"x" * 3000)
    sent = set[str]()
    store.send_small(list(uploads.values()), sent.add)
    assert sent == set(files) - {"n5"}
    assert store.describe("n5") is None
    with pytest.raises(Exception, match="received other bytes than were sent"):
        uploads["n5"].commit()


def test_a_refusal_is_said_as_boto3_finds_it(
    read_message: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = refusing(read_message, b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    files = write_files(tmp_path / "files", tuple(f"n{number}" for number in range(FILES)), 10)
    with pytest.raises(PermissionRefusedError, match="s3:PutObject"):
        send(open_store("s3://runs"), files)
    places = [(name, 10, tmp_path / name) for name in files]
    with pytest.raises(PermissionRefusedError, match="s3:GetObject"):
        fetch(open_store("s3://runs"), places)


def refusing(read_message: Any, answer: bytes) -> str:
    """A server that answers every request alike; it ends with the tests."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)

    def serve(line: socket.socket) -> None:
        with line:
            while read_message(line)[0]:
                line.sendall(answer)

    def accept() -> None:
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


RESTORE = """
    import sys
    from pathlib import Path
    from trainyard.artifacts.restore.restore import restore
    from trainyard.artifacts.restore.selection import Selection
    from trainyard.artifacts.store.store_address import open_store

    restore(open_store(sys.argv[1]), Selection(1), Path(sys.argv[2]))
"""


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_restore_that_is_stopped_in_the_middle_ends_at_once_and_goes_on_later(
    stop: signal.Signals, seaweedfs: Any, proxied: Any, make_run: Any, tmp_path: Path
) -> None:
    store = open_store(f"s3://{seaweedfs.new_bucket()}")
    run = make_run(steps=(100,), size=3000, files=4 * FILES)
    sync_run(store, run, 1)
    proxied.most = len(proxied.requests) + FILES  # after that, no request is answered
    code = textwrap.dedent(RESTORE)
    process = subprocess.Popen([sys.executable, "-c", code, store.url, str(tmp_path / "back")])
    proxied.wait_until_silent()
    process.send_signal(stop)
    started = time.monotonic()
    assert process.wait(30) != 0
    assert time.monotonic() - started < 10
    proxied.most = 1 << 30
    restore(store, Selection(1), tmp_path / "back")
    assert files_of(tmp_path / "back") == files_of(run.path)


@pytest.mark.parametrize("way", ["send", "fetch"])
def test_when_nothing_arrives_any_more_the_rest_is_left_to_boto3(
    way: str, seaweedfs: Any, proxied: Any, moved: list[str], tmp_path: Path
) -> None:
    bucket = seaweedfs.new_bucket()
    store = open_store(f"s3://{bucket}", call_seconds=2)
    files = write_files(tmp_path / "files", tuple(f"n{number}" for number in range(FILES)), 3000)
    places = [(name, 3000, tmp_path / name) for name in files]
    proxied.silent_for = range(20, 40)
    if way == "send":
        assert send(store, files) == {key.removeprefix(store.prefix) for key in (*moved, "n0")}
        assert 0 < len(moved) < FILES - 1
        assert all(store.read_object(key) == path.read_bytes() for key, path in files.items())
    else:
        proxied.silent_for = range(0)
        send(store, files)
        moved.clear()
        proxied.silent_for = range(len(proxied.requests) + 20, len(proxied.requests) + 40)
        came = fetch(store, places)
        assert came == set(moved)
        assert 0 < len(came) < FILES
        assert all((tmp_path / key).read_bytes() == files[key].read_bytes() for key in came)


def test_once_awscrt_gave_up_it_is_not_tried_again(
    seaweedfs: Any, proxied: Any, moved: list[str], tmp_path: Path
) -> None:
    store = open_store(f"s3://{seaweedfs.new_bucket()}", call_seconds=2)
    files = write_files(tmp_path / "files", tuple(f"n{number}" for number in range(FILES)), 3000)
    proxied.silent_for = range(20, 40)
    send(store, files)
    assert 0 < len(moved) < FILES - 1
    moved.clear()
    started = time.monotonic()
    assert send(store, files) == set()
    assert moved == []
    assert fetch(store, [(name, 3000, tmp_path / name) for name in files]) == set()
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("size", [3000, SMALL_BYTES])
def test_bytes_under_way_are_limited(size: int, seaweedfs: Any, proxied: Any, tmp_path: Path) -> None:
    store = open_store(f"s3://{seaweedfs.new_bucket()}", call_seconds=2)
    files = write_files(tmp_path / "files", tuple(f"n{number}" for number in range(200)), size)
    proxied.silent_for = range(1, 1 << 30)
    uploads = [store.stage(path, key, metadata={}) for key, path in files.items()]
    store.send_small(uploads, lambda _key: None)
    assert len(proxied.requests) == 1 + min(199, (32 << 20) // size)


@pytest.mark.parametrize("place", ["run", "target"])
def test_folders_whose_names_are_not_utf8_work_as_with_boto3(
    place: str, seaweedfs: Any, make_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs.url)
    odd = tmp_path / os.fsdecode(b"x\xffy")
    odd.mkdir()
    run = make_run(f"{odd.name}/run" if place == "run" else "run", steps=(100,), size=3000, files=FILES)
    store = open_store(f"s3://{seaweedfs.new_bucket()}")
    assert sync_run(store, run, 1).problems == ()
    target = odd / "back" if place == "target" else tmp_path / "back"
    restore(store, Selection(1), target)
    assert files_of(target) == files_of(run.path)


def test_a_restore_that_a_sync_overtakes_has_the_newer_bytes(
    seaweedfs: Any, make_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: list[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs.url)
    store, run = open_store(f"s3://{seaweedfs.new_bucket()}"), make_run(size=3000, files=FILES)
    sync_run(store, run, 1)
    download, landed = restoring._download_checkpoint, list[str]()

    def overtaken(store: Any, checkpoint: Any, downloader: Any) -> list[str]:
        landed.append(checkpoint.name)
        wrong = download(store, checkpoint, downloader)
        if len(landed) == 1:
            for step in (100, 200):
                shutil.rmtree(run.checkpoint(step))
            make_run(size=3000, files=FILES)
            assert sync_run(store, run, 1).problems == ()
        return wrong

    monkeypatch.setattr(restoring, "_download_checkpoint", overtaken)
    restore(store, Selection(1), tmp_path / "back")
    assert len(landed) > 2
    assert files_of(tmp_path / "back") == files_of(run.path)


def test_what_came_before_is_compared_again_each_time(
    seaweedfs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: list[str]
) -> None:
    """By one `Downloader`: another digest, a removed file, another place, one key at several places."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs.url)
    store = open_store(f"s3://{seaweedfs.new_bucket()}")
    old = write_files(tmp_path / "old", tuple(f"n{number}" for number in range(FILES)), 3000)
    new = write_files(tmp_path / "new", tuple(old), 3000)

    def entries(files: Mapping[str, Path], places: int = 1) -> dict[PurePosixPath, ManifestObject]:
        send(store, files)
        return {
            PurePosixPath(f"p{place}", key): ManifestObject(key, 3000, sha256_of_file(path))
            for key, path in files.items()
            for place in range(places)
        }

    folder = tmp_path / "back"
    with Downloader(store, folder) as downloader:
        for files, places in ((old, 1), (new, 1), (new, 2), (old, 3)):
            wanted = entries(files, places)
            assert downloader.download(wanted) == []
            assert {place: (folder / place).read_bytes() for place in wanted} == {
                place: files[entry.key].read_bytes() for place, entry in wanted.items()
            }
            (folder / "p0" / "n3").unlink()
            assert downloader.download(wanted) == []
            assert (folder / "p0" / "n3").read_bytes() == files["n3"].read_bytes()
    assert len(moved) > 4 * FILES


@pytest.mark.parametrize("way", ["send", "fetch"])
def test_an_interrupt_in_any_line_comes_out_as_what_it_is(
    way: str, seaweedfs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C raises KeyboardInterrupt between any two instructions of the main thread."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs.url)
    store = open_store(f"s3://{seaweedfs.new_bucket()}")
    files = write_files(tmp_path / "files", tuple(f"n{number}" for number in range(FILES)), 100)
    send(store, files)
    lines = interrupted = 0
    while True:
        lines += 37
        left = [lines]

        def trace(frame: Any, event: str, _argument: Any, left: list[int] = left) -> Any:
            if frame.f_code.co_filename != small_files.__file__ or frame.f_code.co_name == "end":
                return None if event == "call" else trace
            if event == "line":
                left[0] -= 1
                if left[0] == 0:
                    raise KeyboardInterrupt
            return trace

        target = tmp_path / f"back-{lines}"
        target.mkdir()
        started, before = time.monotonic(), sys.gettrace()
        sys.settrace(trace)
        try:
            if way == "send":
                send(store, files)
            else:
                fetch(store, [(name, 100, target / name) for name in files])
            break
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(before)
        assert time.monotonic() - started < 4
    assert interrupted > 10


class Between:
    """A proxy that records requests, and can stay silent."""

    def __init__(self, upstream: str, read_message: Any) -> None:
        host, _, port = upstream.removeprefix("http://").partition(":")
        self._upstream, self._read_message = (host, int(port)), read_message
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[bytes] = []
        """The head of each request."""
        self.most = 1 << 30
        """The number of requests that are answered; later ones wait in vain."""
        self.silent_for = range(0)
        """Numbers of requests that wait in vain."""
        self._silent = threading.Event()
        self.context: ssl.SSLContext | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def wait_until_silent(self) -> None:
        assert self._silent.wait(30)

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self.context is not None:
                line = self.context.wrap_socket(line, server_side=True)
            with line:
                head, body = self._read_message(line)
                if not head:
                    return
                number = len(self.requests)
                self.requests.append(head)
                if number >= self.most or number in self.silent_for:
                    self._silent.set()
                    time.sleep(20)
                    return
                with socket.create_connection(self._upstream, timeout=20) as upstream:
                    lines = [each for each in head.split(b"\r\n") if not each.lower().startswith(b"expect:")]
                    upstream.sendall(b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n" + body)
                    line.sendall(b"".join(iter(lambda: upstream.recv(1 << 20), b"")))


@pytest.fixture
def proxied(seaweedfs: Any, read_message: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Between]:
    between = Between(seaweedfs.url, read_message)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{between.address}")
    yield between
    between.close()


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", ""])
def test_tls_goes_by_the_certificates_that_settings_name(
    variable: str,
    seaweedfs: Any,
    proxied: Between,
    moved: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    line = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=store"]
    line += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(line, check=True, capture_output=True)
    proxied.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    proxied.context.load_cert_chain(certificate, key)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://localhost:{proxied.address.partition(':')[2]}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    store = open_store(f"s3://{seaweedfs.new_bucket()}", call_seconds=10)
    files = write_files(tmp_path / "files", tuple(f"n{number}" for number in range(FILES)), 3000)
    if not variable:
        with pytest.raises(ServiceError, match="CERTIFICATE_VERIFY_FAILED"):
            send(store, files)
        return
    monkeypatch.setenv(variable, str(certificate))
    store = open_store(store.url, call_seconds=10)
    send(store, files)
    assert len(moved) == FILES - 1
    assert fetch(store, [(name, 3000, tmp_path / name) for name in files]) == set(files)
    assert all((tmp_path / name).read_bytes() == path.read_bytes() for name, path in files.items())


def test_what_the_client_says_of_itself_and_of_encryption_is_said_of_each_file(
    seaweedfs: Any, proxied: Between, tmp_path: Path
) -> None:
    store = open_store(f"s3://{seaweedfs.new_bucket()}", encryption="AES256")
    send(store, write_files(tmp_path / "files", tuple(f"n{number}" for number in range(FILES)), 10))
    wanted = (b"x-amz-meta-run-number: 1", b"x-amz-server-side-encryption: aes256", b"trainyard botocore/")
    for head in proxied.requests:
        assert all(each in head.lower() for each in wanted), head
        assert head.lower().count(b"authorization:") == 1


def test_the_rate_counts_files_that_go_this_way(seaweedfs: Any, proxied: Between, tmp_path: Path) -> None:
    counted: list[int] = []
    store = open_store(f"s3://{seaweedfs.new_bucket()}", pace=counted.append)
    files = write_files(tmp_path / "files", tuple(f"n{number}" for number in range(FILES)), 1000)
    send(store, files)
    assert sum(counted) == 2 * FILES * 1000  # each is hashed, then sent


SETTINGS: dict[str, dict[str, str]] = {
    "a proxy": {"HTTP_PROXY": "http://127.0.0.1:9"},
    "no proxy for this host": {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"},
    "another region": {"AWS_REGION": "eu-west-1"},
    "a session": {"AWS_SESSION_TOKEN": "token"},
}


@pytest.mark.parametrize(
    ("name", "used"), [*((each, each != "a proxy") for each in SETTINGS), ("fips", False)]
)
def test_awscrt_is_used_only_where_it_goes_the_way_of_boto3(
    name: str, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in SETTINGS.get(name, {}).items():
        monkeypatch.setenv(variable, value)
    host = "s3-fips.us-east-2.amazonaws.com" if name == "fips" else "127.0.0.1:1"
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}")
    bucket = Bucket("runs", "a", encryption="none", call_seconds=1)
    requests: list[Any] = []

    def note(request: Any, **_: Any) -> Any:
        requests.append(request)
        raise OSError("nothing is sent")

    bucket._connection.client.meta.events.register("before-send.s3", note)
    with pytest.raises(OSError, match="nothing is sent"):
        bucket.call("head_object", "k")
    pattern = pattern_of(requests[0], "a/k", method="GET", connection=bucket._connection)
    assert (pattern is not None) == used
    if pattern is not None:
        region = SETTINGS[name].get("AWS_REGION", "us-east-1")
        assert (pattern.host, pattern.folder, pattern.region) == (host, "/runs/", region)
    assert pattern_of(requests[0], "another", method="GET", connection=bucket._connection) is None
    requests[0].headers["Authorization"] = "AWS4-ECDSA-P256-SHA256 Credential=a/20260101/s3/aws4_request,"
    assert pattern_of(requests[0], "a/k", method="GET", connection=bucket._connection) is None
