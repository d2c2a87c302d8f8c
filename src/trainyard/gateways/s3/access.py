"""How a bucket is reached: boto3's client, made as AWS's own settings say.

Only what our uploads need is set here. Region, endpoint, proxy, addressing style, and the accelerate,
dual-stack and FIPS endpoints are boto3's to find out.
"""

import functools
import os
from typing import Any

from trainyard.errors import ConfigError
from trainyard.gateways.s3.clock import Clock, sign_by

CONNECTIONS = 80
"""Kept open at most: those of the threads that send and fetch small files, and of parts beside them."""
_CONNECT_SECONDS = 5.0
_SENT_UNASKED_BYTES = 1 << 20


def connect(*, attempts: int, call_seconds: float, clock: Clock) -> Any:
    """A client with the credentials of now. Raises ConfigError for settings that cannot be used."""
    import boto3
    import botocore.session
    from botocore.exceptions import BotoCoreError
    from botocore.handlers import add_expect_header

    try:
        core = botocore.session.get_session()
        core.register_component("data_loader", _definitions(core.get_config_variable("data_path")))
        session = boto3.session.Session(botocore_session=core)
        region = session.region_name or os.environ.get("AWS_REGION") or "us-east-1"
        client = session.client("s3", region_name=region, config=_settings(attempts, call_seconds))
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"The AWS settings cannot be used: {error}") from None
    client.meta.events.unregister("before-call.s3", add_expect_header)
    client.meta.events.register("before-call.s3.PutObject", _ask_before_a_large_body)
    sign_by(client, clock, session.get_credentials())
    return client


@functools.cache
def _definitions(path: str | None) -> Any:
    """boto3's definitions of services, read once for all clients: they take most of the time to make one."""
    from botocore.loaders import create_loader

    return create_loader(path)


def _ask_before_a_large_body(params: dict[str, Any], **_: Any) -> None:
    """Let S3 refuse a file before it is sent. Small ones and parts go at once: asking takes a round trip."""
    from botocore.utils import determine_content_length

    if (determine_content_length(params["body"]) or 0) > _SENT_UNASKED_BYTES:
        params["headers"]["Expect"] = "100-continue"


def _settings(attempts: int, call_seconds: float) -> Any:
    import boto3
    import botocore
    from botocore.config import Config

    return Config(
        connect_timeout=min(_CONNECT_SECONDS, call_seconds),
        read_timeout=call_seconds,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=CONNECTIONS,
        tcp_keepalive=True,
        # boto3 puts its own together anew for each request, which takes a seventh of the request's time.
        user_agent=f"Trainyard Boto3/{boto3.__version__} Botocore/{botocore.__version__}",
        # Every upload carries a signed checksum of its body already: no second one, neither as a checksum nor
        # as the signature of the body.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"payload_signing_enabled": False},
    )
