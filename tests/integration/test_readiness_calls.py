"""The check of a store fails as the sync of a run does: each operation is refused with several answers."""

import importlib
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.listener import Listener, pass_on, read_message

from trainyard import deployment_checks
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.store_probe import PART_BYTES, StoreAnswer, query_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.command import handler
from trainyard.errors import TrainyardError
from trainyard.machine.readiness import Answers, judge_readiness
from trainyard.plan.finding import Severity

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
