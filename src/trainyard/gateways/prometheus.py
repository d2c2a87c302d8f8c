"""Amazon Managed Service for Prometheus: instant queries, signed for one region.

The callers decide what to request. Nothing is written.
"""

import json
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from trainyard.errors import ConfigError, PermissionRefusedError, ServiceError, ServiceTroubleError
from trainyard.gateways.aws_session import botocore_session
from trainyard.gateways.bounded_calls import call_again
from trainyard.gateways.http_requests import RETRIED_STATUSES, is_http, send_request

_SERVICE = "aps"
_ATTEMPTS = 3
_SECONDS = 20.0


class Prometheus:
    """One workspace."""

    def __init__(self, url: str, *, region: str) -> None:
        """`url` is the query endpoint of a workspace, or its part before `/api/v1/query`.

        Raises ConfigError without a region, or if the address cannot be one.
        """
        if not is_http(url):
            raise ConfigError(
                f"{url!r} is not an address of a Prometheus workspace such as https://aps-workspaces.…"
            )
        if not region:
            raise ConfigError(
                "a query of Amazon Managed Prometheus is signed for a region: name it with --region"
            )
        self._url = url.rstrip("/").removesuffix("/api/v1/query")
        self._region = region

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query, as Prometheus returns them: `metric` and `value`.

        Raises PermissionRefusedError, ServiceError when it is refused, ServiceTroubleError when it failed.
        """
        address = f"{self._url}/api/v1/query"
        body = urlencode({"query": expression}).encode()
        return call_again(lambda: self._once(address, body), attempts=_ATTEMPTS)

    @cached_property
    def _session(self) -> Any:
        return botocore_session()

    def _once(self, address: str, body: bytes) -> list[dict[str, Any]]:
        signed = dict(self._sign(address, body).headers)
        answer = send_request("POST", address, seconds=_SECONDS, headers=signed, body=body)
        if answer.status == 200:
            return _series(answer.content)
        kind = PermissionRefusedError if answer.status in (401, 403) else ServiceError
        message = answer.content[:300].decode(errors="replace")
        raise (ServiceTroubleError if answer.status in RETRIED_STATUSES else kind)(
            f"Prometheus in {self._region} answered {answer.status}: {message}"
        )

    def _sign(self, address: str, body: bytes) -> Any:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        credentials = self._session.get_credentials()
        if credentials is None:
            raise PermissionRefusedError(
                "There are no AWS credentials for Prometheus; set AWS_PROFILE, or AWS_ACCESS_KEY_ID "
                "and AWS_SECRET_ACCESS_KEY"
            )
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        request = AWSRequest(method="POST", url=address, data=body, headers=headers)
        SigV4Auth(credentials, _SERVICE, self._region).add_auth(request)
        return request


def _series(answer: bytes) -> list[dict[str, Any]]:
    try:
        document = json.loads(answer)
        found = document["data"]["result"]
    except (ValueError, KeyError, TypeError):
        raise ServiceError("Prometheus gave an answer without data.result") from None
    return [item for item in found if isinstance(item, dict)]
