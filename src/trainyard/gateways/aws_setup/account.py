"""The account of the credentials, and the clients that the kinds of resources share.

Every call has a time limit and botocore's bounded retries. A refusal by AWS becomes an error that names the
call.
"""

import os
from collections.abc import Callable
from typing import Any

from trainyard.errors import ConfigError
from trainyard.gateways.aws_refusals import ask_aws, client_settings, unsent


class AwsAccount:
    """boto3's clients for one region, with our time limits and errors."""

    def __init__(self, region: str) -> None:
        """An empty `region` means AWS's own setting. Raises ConfigError without one."""
        import boto3
        from botocore.exceptions import BotoCoreError

        # botocore alone reads AWS_DEFAULT_REGION; AWS's other tools, and GitHub's action, set AWS_REGION.
        named = region or os.environ.get("AWS_REGION") or None
        try:
            self._session = boto3.session.Session(region_name=named)
        except BotoCoreError as error:
            raise unsent(error, "start", region=region) from None
        if not self._session.region_name:
            raise ConfigError("No region is set: name one with --region, or set AWS_REGION.")
        self.region = str(self._session.region_name)
        self._clients: dict[str, Any] = {}

    def call(self, service: str, operation: str, *, absent: tuple[str, ...] = (), **arguments: Any) -> Any:
        """The answer to one call; None when AWS answers with one of the error codes in `absent`.

        Raises ServiceError and its subclasses.
        """
        what = f"carry out {service}:{''.join(word.capitalize() for word in operation.split('_'))}"
        return ask_aws(
            lambda: getattr(self._client(service), operation)(**arguments),
            what,
            service=service,
            region=self.region,
            absent=absent,
        )

    def identity(self) -> tuple[str, str]:
        """The number of the account, and its partition."""
        answer = self.call("sts", "get_caller_identity")
        return str(answer["Account"]), str(answer["Arn"]).split(":")[1]

    def _client(self, service: str) -> Any:
        from botocore.exceptions import BotoCoreError

        if service not in self._clients:
            settings = client_settings(read_seconds=30, attempts=4)
            try:
                self._clients[service] = self._session.client(service, config=settings)
            except BotoCoreError as error:
                raise unsent(error, f"use {service}", region=self.region) from None
            except ValueError as error:
                raise ConfigError(f"The AWS settings cannot be used: {error}") from None
        return self._clients[service]


Call = Callable[..., Any]
"""`AwsAccount.call`."""
