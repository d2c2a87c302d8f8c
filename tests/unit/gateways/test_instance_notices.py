"""What EC2 answers about the end of an instance, from a server that speaks as its metadata service does."""

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.answering import answering

from trainyard.gateways import instance_notices
from trainyard.watch.failure_logs.failure_explanation import FailureFacts, explain_logs

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
