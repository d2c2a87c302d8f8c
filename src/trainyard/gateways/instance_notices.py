"""Ask EC2 whether it takes this instance back: a spot interruption, or maintenance that is due.

    this machine is of EC2 ──> token (IMDSv2) ──> spot/instance-action, events/maintenance/scheduled

Nothing is asked elsewhere, nor if AWS_EC2_METADATA_DISABLED is true. The answers are those of the EC2 User
Guide, "Spot Instance interruption notices" and "Scheduled events for your instances".
"""

import http.client
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_VENDOR = Path("/sys/devices/virtual/dmi/id/sys_vendor")
_ENDPOINT = "http://169.254.169.254"
_SECONDS = 1.0  # a container that may not ask gets no answer
_SOON_SECONDS = 180.0  # EC2 announces an interruption two minutes before it


def instance_notices() -> tuple[str, ...]:
    """Return a sentence for each reason for which EC2 ends this instance now; empty if none is known."""
    with suppress(OSError, http.client.HTTPException, ValueError, TypeError):
        is_disabled = os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
        if not is_disabled and _VENDOR.read_text().strip() == "Amazon EC2":
            return tuple(_notices())
    return ()


def _notices() -> Iterator[str]:
    place = urlsplit(os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _ENDPOINT)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=_SECONDS)
    try:
        lives = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        connection.request("PUT", "/latest/api/token", headers=lives)
        token = connection.getresponse().read().decode()
        if spot := _ask(connection, token, "spot/instance-action"):
            yield f"spot interruption notice of EC2: {spot['action']} at {spot['time']}"
        for event in _ask(connection, token, "events/maintenance/scheduled") or ():
            begins = datetime.strptime(event["NotBefore"], "%d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)
            if event["State"] == "active" and begins.timestamp() < time.time() + _SOON_SECONDS:
                yield f"maintenance notice of EC2: {event['Code']} from {event['NotBefore']}"
    finally:
        connection.close()


def _ask(connection: http.client.HTTPConnection, token: str, name: str) -> Any:
    """Return an answer of the metadata service; None if it has none of this name."""
    connection.request("GET", f"/latest/meta-data/{name}", headers={"X-aws-ec2-metadata-token": token})
    answer = connection.getresponse()
    content = answer.read()
    return json.loads(content) if answer.status == 200 else None
