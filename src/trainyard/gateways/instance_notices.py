"""Ask EC2 whether it takes this instance back by a spot interruption.

    this machine is of EC2 ──> token (IMDSv2) ──> spot/instance-action

Nothing is asked elsewhere, nor if AWS_EC2_METADATA_DISABLED is true. The answer is that of the EC2 User
Guide, "Spot Instance interruption notices".
"""

import http.client
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_VENDOR = Path("/sys/devices/virtual/dmi/id/sys_vendor")
_ENDPOINT = "http://169.254.169.254"
_SECONDS = 1.0  # a container that may not ask gets no answer


def instance_notices() -> tuple[str, ...]:
    """Return a sentence for the reason for which EC2 ends this instance now; empty if none is known."""
    with suppress(OSError, http.client.HTTPException, ValueError, TypeError, KeyError):
        is_disabled = os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
        if not is_disabled and _VENDOR.read_text().strip() == "Amazon EC2" and (spot := _spot_action()):
            return (f"spot interruption notice of EC2: {spot['action']} at {spot['time']}",)
    return ()


def _spot_action() -> Any:
    """Return the answer of the metadata service; None if there is no notice."""
    place = urlsplit(os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _ENDPOINT)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=_SECONDS)
    try:
        lives = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        connection.request("PUT", "/latest/api/token", headers=lives)
        token = connection.getresponse().read().decode()
        proven = {"X-aws-ec2-metadata-token": token}
        connection.request("GET", "/latest/meta-data/spot/instance-action", headers=proven)
        answer = connection.getresponse()
        content = answer.read()
        return json.loads(content) if answer.status == 200 else None
    finally:
        connection.close()
