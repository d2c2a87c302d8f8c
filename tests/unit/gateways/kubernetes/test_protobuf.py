"""Lists in protobuf: answers of a real API server have the values of their JSON; damaged ones are refused."""

import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from trainyard.cluster.api_objects import node_of, pod_of
from trainyard.gateways.kubernetes.api import message_in
from trainyard.gateways.kubernetes.protobuf import LISTS, NotDecodableError, continue_token, decode_list

RECORDED = json.loads((Path(__file__).parent / "protobuf_lists.json").read_text())
"""Request -> `protobuf` in base64 and `json`, both as Kubernetes 1.34 answered. The objects have every field
that is decoded."""
REDUCE = {"/api/v1/pods": pod_of, "/api/v1/nodes": node_of}


def body_of(request: str) -> tuple[bytes, Any]:
    return base64.b64decode(RECORDED[request]["protobuf"]), LISTS[request.partition("?")[0]]


def differences(found: Any, told: Any, path: str = "") -> Iterator[str]:
    """The fields whose decoded value is not that of JSON, which leaves empty values out."""
    if isinstance(found, dict):
        told = told or {}
        for key, value in found.items():
            yield from differences(value, told.get(key), f"{path}.{key}")
    elif isinstance(found, list):
        for number, value in enumerate(found):
            yield from differences(value, told[number], f"{path}[{number}]")
    elif found != told and (found or told):
        yield f"{path}: {found!r}, {told!r} in JSON"


@pytest.mark.parametrize("request_", RECORDED)
def test_the_same_is_kept_of_protobuf_as_of_json(request_: str) -> None:
    body, fields = body_of(request_)
    found, told = decode_list(body, fields), RECORDED[request_]["json"]
    assert list(differences(found, told)) == []
    reduce = REDUCE[request_.partition("?")[0]]
    assert [reduce(item) for item in found["items"]] == [reduce(item) for item in told["items"]]
    assert continue_token(body) == told["metadata"].get("continue", "")
    assert bool(continue_token(body)) == request_.endswith("limit=1")


def test_every_field_that_is_decoded_has_been_seen_of_a_real_server() -> None:
    for path, fields in LISTS.items():
        seen = set(paths_of(decode_list(body_of(f"{path}?limit=500")[0], fields)))
        seen |= set(paths_of(decode_list(body_of(f"{path}?limit=1")[0], fields)))
        assert set(names_of(fields)) - seen == ALWAYS_ABSENT[path]


ALWAYS_ABSENT = {
    "/api/v1/pods": {
        ".items.metadata.annotations",
        ".items.spec.containers.restartPolicy",
        ".items.spec.initContainers.resources.limits",
        *(f".items.status.initContainerStatuses.state.waiting{part}" for part in ("", ".reason", ".message")),
    },
    "/api/v1/nodes": {".items.metadata.deletionTimestamp"}
    | {f".items.metadata.ownerReferences{part}" for part in ("", ".kind", ".name", ".apiVersion")},
}
"""Fields of messages that are seen in another place: metadata in both lists, containers, their states."""


def names_of(fields: Any, path: str = "") -> Iterator[str]:
    for field in fields.values():
        own = f"{path}.{field.name}" if field.name else path
        if field.name:
            yield own
        yield from names_of(field.fields, own)


def paths_of(found: Any, path: str = "") -> Iterator[str]:
    for item in found if isinstance(found, list) else [found]:
        for key, value in item.items() if isinstance(item, dict) else ():
            yield f"{path}.{key}"
            yield from paths_of(value, f"{path}.{key}")


def test_the_reason_of_a_refusal_is_read_from_protobuf() -> None:
    reason = b'pods is forbidden: User "dev" cannot list resource "pods" at the cluster scope'
    status = b"\x12\x07Failure\x1a" + bytes([len(reason)]) + reason + b"\x22\x09Forbidden0\x93\x03"
    body = b"k8s\x00\n\x0c\n\x02v1\x12\x06Status\x12" + bytes([len(status)]) + status + b"\x1a\x00\x22\x00"
    assert message_in(body) == reason.decode()
    assert message_in(body[:40]) == ""


@pytest.mark.parametrize("request_", RECORDED)
def test_an_answer_that_is_cut_off_is_refused(request_: str) -> None:
    body, fields = body_of(request_)
    for length in range(0, len(body) - 8, 7):
        with pytest.raises(NotDecodableError):
            decode_list(body[:length], fields)
        assert isinstance(continue_token(body[:length]), str)


@pytest.mark.parametrize("request_", RECORDED)
def test_a_damaged_answer_is_decoded_or_refused_and_never_crashes(request_: str) -> None:
    body, fields = body_of(request_)
    for place in range(4, len(body), 5):
        for wrong in (b"\x00", b"\x7f", b"\xff"):
            damaged = body[:place] + wrong + body[place + 1 :]
            with suppress(NotDecodableError):
                decode_list(damaged, fields)
            continue_token(damaged)
