"""How a bucket is reached: what AWS's settings say, the short way, and botocore's client.

The client takes a tenth of a second to make, most of it for definitions of services. Where the environment
names the endpoint, it is made when something is first asked that only it can ask, or can word the refusal of.
"""

import contextlib
import gc
import os
import threading
from collections.abc import Iterator
from typing import Any

from trainyard.errors import ConfigError
from trainyard.gateways.s3.clock import Clock, sign_by
from trainyard.gateways.s3.direct import Direct

_CONNECT_SECONDS = 5.0
_CONNECTIONS = 32
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""In botocore's order; the files of settings come after them."""


class Access:
    """With the credentials that are to be had when it is made."""

    def __init__(self, bucket: str, *, attempts: int, call_seconds: float, clock: Clock) -> None:
        """Raises ConfigError for settings that cannot be used."""
        self._attempts, self._seconds, self._clock = attempts, call_seconds, clock
        self._made: Any = None
        self._making = threading.Lock()
        with _explained():
            import boto3

            with _no_garbage_looked_for():
                self._session = boto3.session.Session()
            region = self._session.region_name or os.environ.get("AWS_REGION") or "us-east-1"
            self._region = _require_region(str(region))
            self.endpoint = self._endpoint_in_environment() or str(self.client.meta.endpoint_url)
            how: dict[str, Any] = {"region": self._region, "call_seconds": call_seconds, "clock": clock}
            self.direct = Direct(self._session, self.endpoint, bucket, **how)

    @property
    def client(self) -> Any:
        """botocore's. Raises ConfigError for settings that cannot be used."""
        with self._making, _explained():
            if self._made is None:
                with _no_garbage_looked_for():
                    settings = _settings(self._attempts, self._seconds)
                    client = self._session.client("s3", region_name=self._region, config=settings)
                sign_by(client, self._clock, self._session.get_credentials())
                self._made = client
            return self._made

    def _endpoint_in_environment(self) -> str:
        """Empty where botocore would not take it from there, or would refuse it."""
        from botocore.utils import is_valid_endpoint_url

        session = self._session._session
        if "fips" in self._region:  # an old name of a region, which botocore takes for another one
            return ""
        if session.get_config_variable("ignore_configured_endpoint_urls"):
            return ""
        url = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), "")
        return url if is_valid_endpoint_url(url) else ""


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    from botocore.exceptions import BotoCoreError

    try:
        yield
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"The AWS settings cannot be used: {error}") from None


@contextlib.contextmanager
def _no_garbage_looked_for() -> Iterator[None]:
    """botocore reads thousands of definitions, which all stay: looking through them took a fifth of it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _require_region(region: str) -> str:
    from botocore.utils import validate_region_name

    validate_region_name(region)
    return region


def _settings(attempts: int, call_seconds: float) -> Any:
    from botocore.config import Config

    return Config(
        connect_timeout=min(_CONNECT_SECONDS, call_seconds),
        read_timeout=call_seconds,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=_CONNECTIONS,
        # Every upload carries a signed SHA-256 of its body already: no second digest, neither as checksum nor
        # as payload signature.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # "auto" is by path wherever an endpoint is set: stores that are not Amazon's seldom have a host name
        # for each bucket.
        s3={"addressing_style": "auto", "payload_signing_enabled": False},
    )
