"""Create boto3's client from AWS's own settings.

Only the settings that our uploads need are set here. boto3 finds the region, endpoint, proxy, addressing
style, and the accelerate, dual-stack and FIPS endpoints. The client comes from botocore, as in
`boto3.client("s3")`: importing boto3's resources and transfers, which are not used, takes 35 ms.
"""

import functools
import os
from typing import Any
from urllib.parse import urlsplit

from trainyard.errors import ConfigError
from trainyard.gateways.aws_session import botocore_session

CONNECTIONS = 80
"""Maximum number of open connections, for the threads that transfer small files and parts."""
_CONNECT_SECONDS = 5.0
_SENT_UNASKED_BYTES = 1 << 20


def connect(*, attempts: int, call_seconds: float) -> Any:
    """Return boto3's client with the current credentials.

    Raises ConfigError for unusable settings, ServiceError when a workflow's role cannot be assumed.
    """
    from botocore.exceptions import BotoCoreError
    from botocore.handlers import add_expect_header

    try:
        core = botocore_session()
        core.register_component("data_loader", _definitions(core.get_config_variable("data_path")))
        region = core.get_config_variable("region") or os.environ.get("AWS_REGION") or "us-east-1"
        client = core.create_client("s3", region_name=region, config=_settings(attempts, call_seconds))
        if not is_tamper_proof(client.meta.endpoint_url):
            config = _settings(attempts, call_seconds, signs_bodies=True)
            client = core.create_client("s3", region_name=region, config=config)
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"The AWS settings cannot be used: {error}") from None
    client.meta.events.unregister("before-call.s3", add_expect_header)
    client.meta.events.register("before-call.s3.PutObject", _ask_before_a_large_body)
    return client


def is_tamper_proof(endpoint: str) -> bool:
    """Return whether nobody between here and the store can change bytes together with their checksum."""
    place = urlsplit(endpoint)
    return place.scheme == "https" or place.hostname in ("localhost", "127.0.0.1", "::1")


@functools.cache
def _definitions(path: str | None) -> Any:
    """Return AWS's service definitions, loaded once because loading them takes most of a client's start."""
    from botocore.loaders import create_loader

    return create_loader(path)


def _ask_before_a_large_body(params: dict[str, Any], **_: Any) -> None:
    """Let S3 refuse a large file before its body is sent. For small ones, this wastes a round trip."""
    from botocore.utils import determine_content_length

    if (determine_content_length(params["body"]) or 0) > _SENT_UNASKED_BYTES:
        params["headers"]["Expect"] = "100-continue"


def _settings(attempts: int, call_seconds: float, *, signs_bodies: bool = False) -> Any:
    import botocore
    from botocore.config import Config

    return Config(
        connect_timeout=min(_CONNECT_SECONDS, call_seconds),
        read_timeout=call_seconds,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=CONNECTIONS,
        tcp_keepalive=True,
        # botocore builds its user agent anew for each request, which takes a seventh of the request's time.
        user_agent=f"Trainyard Botocore/{botocore.__version__}",
        # Every upload already carries a signed checksum of its body, so no second checksum is needed. A
        # CRC can be forged, so bodies are signed too where somebody could change them on their way.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"payload_signing_enabled": signs_bodies},
    )
