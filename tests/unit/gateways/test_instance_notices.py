"""What EC2 answers about the end of an instance, from a server that speaks as its metadata service does."""

import http.server
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

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

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, text: str | None) -> None:
            self.send_response(404 if text is None else 200)
            body = (text or "").encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_PUT(self) -> None:
            self.answer("secret")

        def do_GET(self) -> None:
            is_known = self.headers["X-aws-ec2-metadata-token"] == "secret"
            self.answer(given.get(self.path) if is_known else None)

        def log_message(self, *_: Any) -> None:
            pass

    vendor = tmp_path / "sys_vendor"
    vendor.write_text("Amazon EC2\n")
    monkeypatch.setattr(instance_notices, "_VENDOR", vendor)
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
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
        server.shutdown()
