"""Find the owner of a W&B key: one request, without the client, which retries for half a minute."""

import base64
import json
import netrc
from collections.abc import Mapping
from urllib.parse import urlsplit

from trainyard.errors import ServiceError, ServiceTroubleError
from trainyard.gateways.http_requests import send_request

SERVER = "https://api.wandb.ai"
CALL_SECONDS = 5.0
_QUESTION = "query { viewer { username } }"


def api_key(environment: Mapping[str, str]) -> str:
    """Return the API key of the environment, or that of `wandb login` in ~/.netrc; empty without one."""
    if key := environment.get("WANDB_API_KEY", "").strip():
        return key
    try:
        entry = netrc.netrc().authenticators(urlsplit(_server(environment)).hostname or "")
    except (OSError, netrc.NetrcParseError):
        return ""
    return str(entry[2] or "") if entry else ""


def owner_of(key: str, environment: Mapping[str, str]) -> str:
    """Return who the key belongs to, as a text for people.

    Raises ServiceError for a key that W&B does not know, ServiceTroubleError when W&B cannot be reached.
    """
    server = _server(environment)
    answer = send_request(
        "POST",
        f"{server}/graphql",
        seconds=CALL_SECONDS,
        headers={"Content-Type": "application/json"},
        authorization=f"Basic {base64.b64encode(f'api:{key}'.encode()).decode()}",
        body=json.dumps({"query": _QUESTION}).encode(),
    )
    try:
        viewer = (
            (json.loads(answer.content).get("data") or {}).get("viewer") if answer.status == 200 else None
        )
    except (ValueError, AttributeError):
        raise ServiceTroubleError(f"W&B at {server} answered with something else than JSON") from None
    if answer.status >= 500:
        raise ServiceTroubleError(f"W&B at {server} answered {answer.status}")
    if not viewer:
        raise ServiceError(f"W&B at {server} does not know this API key (status {answer.status})")
    return f"the key of {viewer.get('username')} at {server}"


def _server(environment: Mapping[str, str]) -> str:
    return (environment.get("WANDB_BASE_URL") or SERVER).rstrip("/")
