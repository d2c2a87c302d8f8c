"""The check before a run on real stores: each fault is red with its reason, as the sync of a run fails."""

import importlib
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from tests.integration.conftest import AsUser, documented_policy
from tests.listener import Listener, pass_on, read_message
from tests.scripts.conftest import Call, Done

from trainyard import deployment_checks
from trainyard.artifacts.inventory import list_runs
from trainyard.artifacts.record.run_numbers import used_numbers
from trainyard.artifacts.store.layout import READINESS, READINESS_PARTS, READINESS_SMALL
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.store_probe import PART_BYTES, StoreAnswer, probe_store, query_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.command import handler
from trainyard.errors import TrainyardError
from trainyard.machine.readiness import Answers, judge_readiness
from trainyard.plan.finding import Severity

OBJECTS = sorted((READINESS, READINESS_SMALL, READINESS_PARTS))


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs the script's `main` in this process; keyword arguments are variables, empty ones are not set."""
    script = importlib.import_module("trainyard.commands.doctor")
    hidden = ("GITHUB_", "TRAINYARD_", "RUNNER_")

    def run(*words: str, **variables: str) -> Done:
        with monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith(hidden)]:
                patch.delenv(name)
            for name, value in variables.items():
                if value:
                    patch.setenv(name, value)
                else:
                    patch.delenv(name, raising=False)
            code = handler.exit_code_of(lambda: script.main(words))
        said = capsys.readouterr()
        assert "Traceback" not in said.err, said.err
        return Done(code, said.out, said.err)

    return run


def keys(server: Any, bucket: str) -> list[str]:
    return [each["Key"] for each in server.client.list_objects_v2(Bucket=bucket).get("Contents", [])]


@pytest.mark.parametrize("name", ["seaweedfs", "moto"])
def test_a_good_store_is_ready_and_what_the_check_leaves_is_three_objects(
    request: pytest.FixtureRequest, check: Call, name: str
) -> None:
    server = request.getfixturevalue(name)
    bucket = server.new_bucket()
    server.client.put_object(Bucket=bucket, Key="phase2/somebody's", Body=b"else")
    url = f"s3://{bucket}/phase2"
    for _ in range(2):
        done = check("--store", url, AWS_ENDPOINT_URL=server.url)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert done.stderr.rstrip().endswith(f"store: {url} writable, run 1 is free [ok]")
    assert keys(server, bucket) == ["phase2/somebody's", *(f"phase2/{key}" for key in OBJECTS)]


def test_the_number_of_this_run_is_its_own_and_that_of_another_is_refused(
    seaweedfs: Any, check: Call, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs.url)
    run, url = make_run("mine"), f"s3://{seaweedfs.new_bucket()}"
    sync_run(open_store(url), run, 3)
    here = ("--store", url, "--run-dir", str(run.path))
    for number in ("auto", "3"):
        assert "run 3 is this run's [ok]" in check(*here, "--run-number", number).stderr
    assert "run 5 is free [ok]" in check(*here, "--run-number", "5").stderr
    taken = check("--store", url, "--run-number", "3", TRAINYARD_RUN_ID="gh-77")
    assert taken.returncode == 2
    assert f"run number: 3 in {url} belongs to run run-mine; this is run gh-77" in taken.stderr
    assert "fix: take a free one: --run-number 4" in taken.stderr
    assert "run 4 is free [ok]" in check("--store", url, TRAINYARD_RUN_ID="gh-77").stderr


CREDENTIALS = {
    "another key": {"AWS_ACCESS_KEY_ID": "nobody"},
    "another secret": {"AWS_SECRET_ACCESS_KEY": "mistyped"},
    "no credentials": {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
    "half of them": {"AWS_SECRET_ACCESS_KEY": ""},
    "a profile that is not there": {"AWS_PROFILE": "nobody"},
    "a region that is none": {"AWS_REGION": "us east 1", "AWS_DEFAULT_REGION": "us east 1"},
    "attempts that are none": {"AWS_MAX_ATTEMPTS": "many"},
    "an endpoint that is not a URL": {"AWS_ENDPOINT_URL": "127.0.0.1"},
    "nobody listens": {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
}


@each_case("wrong", CREDENTIALS)
def test_what_is_wrong_with_the_way_to_the_store_is_said_in_seconds(
    seaweedfs: Any, check: Call, wrong: str
) -> None:
    bucket, started = seaweedfs.new_bucket(), time.monotonic()
    done = check("--store", f"s3://{bucket}", **{"AWS_ENDPOINT_URL": seaweedfs.url, **CREDENTIALS[wrong]})
    assert done.returncode == 1, done.stderr
    assert re.search(r"^store: .{20}", done.stderr, re.M)
    assert (
        f"  fix: fix that, then check again in seconds: trainyard doctor --store s3://{bucket}" in done.stderr
    )
    assert "1 check failed. Nothing was started." in done.stderr
    assert "mistyped" not in done.stderr
    assert time.monotonic() - started < 120
    assert keys(seaweedfs, bucket) == []


@pytest.mark.parametrize("answers", [b"", b"HTTP/1.1 200 OK\r\n"], ids=["silent", "breaks off"])
def test_a_store_that_hangs_is_red_within_the_time_limit(check: Call, answers: bytes) -> None:
    """The server accepts every connection and request, and never completes an answer."""
    with ExitStack() as held:
        server = held.enter_context(socket.create_server(("127.0.0.1", 0)))

        def take() -> None:
            with suppress(OSError):
                while True:
                    client = held.enter_context(server.accept()[0])
                    client.sendall(answers)

        taking = threading.Thread(target=take)
        taking.start()
        started, url = time.monotonic(), f"http://127.0.0.1:{server.getsockname()[1]}"
        done = check("--store", "s3://ml-runs", "--timeout", "1s", AWS_ENDPOINT_URL=url)
        assert time.monotonic() - started < 120
        server.shutdown(socket.SHUT_RDWR)
        taking.join()
    assert done.returncode == 1
    assert f"store: s3://ml-runs at {url} gave no answer within 1 seconds" in done.stderr


@each_case(
    "missing",
    [
        *(("s3:ListBucket",), ("s3:PutObject",), ("s3:GetObject",), ("s3:ListBucket", "s3:PutObject")),
        *(("s3:PutObject", "s3:GetObject"), ("s3:ListBucket", "s3:PutObject", "s3:GetObject")),
    ],
)
def test_every_permission_that_is_missing_is_named_in_one_go(
    as_user: AsUser, check: Call, missing: tuple[str, ...]
) -> None:
    nothing = {"Effect": "Allow", "Action": ["s3:GetBucketTagging"], "Resource": "*"}
    bucket, variables = as_user(lambda bucket: documented_policy(bucket, *missing) or [nothing])
    done = check("--store", f"s3://{bucket}/phase2", **variables)
    assert done.returncode == 1
    named = set(re.findall(r"The missing permission is (s3:\w+) on", done.stderr))
    assert named == set(missing)
    assert "permissions.md#artifacts" in done.stderr


@pytest.mark.parametrize("kind", ["seaweedfs", "file"])
def test_checks_of_one_store_at_once_are_all_green(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    url = f"file://{tmp_path}/store"
    if kind != "file":
        endpoint = request.getfixturevalue(kind)
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.url)
        url = f"s3://{endpoint.new_bucket()}/x"
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda _: probe_store(open_store(url, part_bytes=PART_BYTES), writes=True), range(8))
        )
    assert [each.problems for each in found] == [[]] * 8


def test_a_check_that_was_killed_and_one_that_is_not_ours(
    seaweedfs: Any, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs.url)
    bucket = seaweedfs.new_bucket()
    store = open_store(f"s3://{bucket}", part_bytes=PART_BYTES)
    store.put_new(READINESS, b'{"written_by": "trainyard doctor"}\n', metadata={})
    for key in OBJECTS:
        for theirs in (b"{}", b"not JSON", b"[" * 100_000, b"") if key == READINESS else (b"theirs",):
            seaweedfs.client.put_object(Bucket=bucket, Key=key, Body=theirs)
            problems = " ".join(probe_store(store, writes=True).problems)
            assert re.search("this name is reserved|holds other bytes under this name", problems)
            assert seaweedfs.client.get_object(Bucket=bucket, Key=key)["Body"].read() == theirs
        seaweedfs.client.delete_object(Bucket=bucket, Key=key)
    assert probe_store(store, writes=True).problems == []
    sync_run(store, make_run(), None)
    assert (used_numbers(store), verify_run(store, 1, depth=Depth.FULL).problems) == ([1], ())
    (listed,) = list_runs(store, [1], judge=lambda *_: ())
    of_the_run = [key for key in keys(seaweedfs, bucket) if key.startswith(("run-1/", "man", "met"))]
    assert listed.objects == len(of_the_run), "what a check left is of no run"


ANSWERS = {
    # status -> codes of S3 and of servers like it
    "400": ("InvalidArgument", "InvalidRequest", "XAmzContentSHA256Mismatch"),
    "403": ("AccessDenied",),
    "404": ("NoSuchBucket",),
    "405": ("MethodNotAllowed",),
    "409": ("OperationAborted",),
    "411": ("MissingContentLength",),
    "500": ("InternalError",),
    "501": ("NotImplemented",),
    "503": ("SlowDown",),
}
NEVER = ("400", "405", "411", "501")
"""Statuses of an operation that the store will never do."""
NEEDED = (
    *("PutObject if absent", "ListObjectsV2", "HeadObject", "GetObject"),
    *("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"),
)
NOT_NEEDED = ("AbortMultipartUpload", "ListMultipartUploads", "ListParts")
"""A sync does without them: parts and objects remain, and large files are sent from their start."""


def cases() -> list[tuple[str, str, str]]:
    """Server, operation and status: each operation once, and each status once."""
    statuses, more = list(ANSWERS), len(ANSWERS) - len(NEEDED)
    operations = [*NEEDED, *NEEDED[:more]]
    return [
        *(("seaweedfs", operation, status) for operation, status in zip(operations, statuses, strict=True)),
        *(("moto", operation, "501") for operation in NEEDED[1:3]),
    ]


def operation_of(head: bytes) -> str:
    """The name of the operation that a request asks for."""
    line, _, rest = head.partition(b"\r\n")
    method, target, _ = line.decode().split(" ")
    path, _, query = target.partition("?")
    has_key = path.count("/") > 1 and not path.endswith("/")
    if method == "POST":
        return "CreateMultipartUpload" if re.match(r"uploads\b", query) else "CompleteMultipartUpload"
    if "uploadId=" in query:
        return {"PUT": "UploadPart", "DELETE": "AbortMultipartUpload", "GET": "ListParts"}[method]
    if method == "GET" and not has_key:
        return "ListObjectsV2" if "list-type=2" in query else "ListMultipartUploads"
    if method == "PUT" and b"if-none-match:" in rest.lower():
        return "PutObject if absent"
    return {"PUT": "PutObject", "HEAD": "HeadObject", "GET": "GetObject", "DELETE": "DeleteObject"}[method]


class RefusingProxy(Listener):
    """Passes requests to an S3 server, one per connection, and refuses one operation."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self.refused, self.status, self.code = "", "", ""
        self.seen: list[str] = []
        self.slow: dict[str, float] = {}
        """Operation -> the seconds by which its answer is delayed."""
        super().__init__()

    def serve(self, client: socket.socket) -> None:
        client.settimeout(20)
        head, body = read_message(client)
        with suppress(KeyError):  # a stranger, who speaks HTTP/2 to a port that was another's
            client.sendall(self._answer(head, body) if head else b"")

    def _answer(self, head: bytes, body: bytes) -> bytes:
        operation = operation_of(head)
        self.seen.append(operation)
        if operation == self.refused:
            said = b"" if operation == "HeadObject" else f"<Error><Code>{self.code}</Code></Error>".encode()
            start = f"HTTP/1.1 {self.status} No\r\nContent-Length: {len(said)}\r\nConnection: close\r\n\r\n"
            return start.encode() + said
        answer = pass_on(self._upstream, head, body)
        time.sleep(self.slow.get(operation, 0))
        return answer


@pytest.fixture(params=["seaweedfs", "moto"])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def proxy(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[RefusingProxy]:
    proxy = RefusingProxy(server.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    yield proxy
    proxy.close()


def opened(url: str) -> Any:
    return open_store(url, call_seconds=10, part_bytes=PART_BYTES)


def checked(url: str) -> StoreAnswer:
    return query_store(lambda: opened(url), "run-new", None, may_be_stored=False, writes=True)


def sync_problem(url: str, run: Any) -> str:
    """Store the run; return the reason why it failed, or an empty text."""
    try:
        sync_run(opened(url), run, None)
    except TrainyardError as error:
        return str(error)
    return ""


def is_red(answer: StoreAnswer) -> bool:
    findings = judge_readiness(Answers("s3://b", "run-new", "again", **vars(answer)))
    return any(each.severity == Severity.ERROR for each in findings)


def left_in(server: Any, bucket: str) -> tuple[list[str], list[str]]:
    """Keys, and keys of open uploads."""
    listed = server.client.list_objects_v2(Bucket=bucket).get("Contents", [])
    uploads = server.client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    return [each["Key"] for each in listed], [each["Key"] for each in uploads]


def test_the_check_makes_every_call_of_a_sync(proxy: RefusingProxy, server: Any, make_run: Any) -> None:
    bucket = server.new_bucket()
    answer = checked(f"s3://{bucket}")
    assert (answer.problems, is_red(answer)) == ((), False)
    by_the_check = set(proxy.seen)
    assert left_in(server, bucket)[1] == []
    proxy.seen.clear()
    assert sync_problem(f"s3://{bucket}", make_run(steps=(1,), size=PART_BYTES + 500_000)) == ""
    assert set(NEEDED) - {"HeadObject", "GetObject"} <= set(proxy.seen)
    assert set(proxy.seen) - set(NOT_NEEDED) <= by_the_check
    assert "AbortMultipartUpload" in by_the_check


@pytest.mark.parametrize(("server", "operation", "status"), cases(), indirect=["server"])
def test_what_the_check_says_is_what_the_sync_meets(
    proxy: RefusingProxy, server: Any, make_run: Any, operation: str, status: str
) -> None:
    run = make_run(steps=(1,), size=PART_BYTES + 500_000)
    for code in ANSWERS[status]:
        bucket = server.new_bucket()
        proxy.refused, proxy.status, proxy.code = operation, status, code
        answer = checked(f"s3://{bucket}")
        problem = sync_problem(f"s3://{bucket}", run)
        proxy.refused = ""
        assert is_red(answer) >= bool(problem), f"green, and then: {problem}"
        assert is_red(answer)
        said = " ".join(answer.problems)
        if status == "400" and operation == "HeadObject":  # no body: an expired session has the same answer
            assert answer.is_able
            assert "Perhaps the session has expired" in said
        elif status in NEVER and code != "XAmzContentSHA256Mismatch":
            name = operation.partition(" ")[0]
            assert not answer.is_able
            assert f"cannot do {name}: " in said
            assert "Trying again does not help" in said
            (fix, *_) = (
                each.fix for each in judge_readiness(Answers("s3://b", "r", "again", **vars(answer)))
            )
            assert fix is not None
            assert fix.startswith("name another store")
        else:
            assert answer.is_able or code == "XAmzContentSHA256Mismatch"
        assert ("Try again later" in said) == (status in ("500", "503"))
        if operation != "ListObjectsV2":
            assert left_in(server, bucket)[1] == []


@pytest.mark.parametrize("server", ["seaweedfs"], indirect=True)
@pytest.mark.parametrize(("operation", "status"), [*zip(NOT_NEEDED, ("403", "501", "503"), strict=True)])
def test_what_a_sync_does_without_is_no_failure(
    proxy: RefusingProxy, server: Any, make_run: Any, operation: str, status: str
) -> None:
    bucket = server.new_bucket()
    proxy.refused, proxy.status, proxy.code = operation, status, ANSWERS[status][0]
    answer = checked(f"s3://{bucket}")
    assert (answer.problems, is_red(answer)) == ((), False)
    assert sync_problem(f"s3://{bucket}", make_run(steps=(1,), size=PART_BYTES + 500_000)) == ""


@pytest.mark.parametrize("server", ["moto"], indirect=True)
@pytest.mark.parametrize(("operation", "is_patient"), [("UploadPart", True), ("PutObject if absent", False)])
def test_a_slow_line_has_time_for_a_part_and_a_store_that_hangs_is_noticed_soon(
    proxy: RefusingProxy, server: Any, monkeypatch: pytest.MonkeyPatch, operation: str, is_patient: bool
) -> None:
    """At 2 Mbit/s the 5 MiB of a part take 20 seconds, most of it after the kernel has taken the bytes."""
    script = importlib.import_module("trainyard.commands.doctor")
    monkeypatch.setattr(deployment_checks, "CALL_SECONDS", 3.0)
    proxy.slow = {operation: 6.0}
    code = handler.exit_code_of(lambda: script.main(["--store", f"s3://{server.new_bucket()}"]))
    assert (code == 0) is is_patient
