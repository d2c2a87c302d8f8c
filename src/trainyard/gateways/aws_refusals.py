"""Call AWS with time limits, and turn its refusals into our errors, whose messages name the fix.

    error code, or botocore's own error  ──>  ConfigError | ServiceError and its subclasses

The gateways of images and of the set-up use it. They name the codes that only one operation knows, such as
that of a repository that does not exist. `AwsAccount` holds the clients of one region.
"""

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from trainyard.errors import (
    ConfigError,
    CredentialsRefusedError,
    PermissionRefusedError,
    ServiceError,
    ServiceTroubleError,
)
from trainyard.gateways.aws_session import ROLE, boto3_session

# Error codes of AWS, the class of the error, and what completes "AWS in us-west-2 refused to …".
_REFUSALS: tuple[tuple[str, type[ServiceError], str], ...] = (
    (
        "ExpiredToken ExpiredTokenException TokenRefreshRequired RequestExpired CredentialsExpired",
        CredentialsRefusedError,
        ": the session of these credentials has expired ({code}). Log in again (aws sso login), or assume "
        "the role again.",
    ),
    (
        "OptInRequired RegionDisabledException UnrecognizedClientException InvalidClientTokenId "
        "InvalidAccessKeyId AuthFailure SignatureDoesNotMatch InvalidSignatureException IncompleteSignature "
        "InvalidToken MissingAuthenticationToken MissingAuthenticationTokenException NotAuthorized",
        CredentialsRefusedError,
        ": it does not know these credentials ({code}). They are wrong or were deactivated (aws sts "
        "get-caller-identity shows it), or the region is off for the account: enable it in the account "
        "settings (AWS Regions), or name another with --region.",
    ),
    (
        "AccessDenied AccessDeniedException UnauthorizedOperation AllAccessDisabled AuthorizationError 403 "
        "Forbidden",
        PermissionRefusedError,
        ": this is not allowed ({stated}). The permissions that the role needs are in "
        "docs/runbooks/permissions.md#images.",
    ),
    (
        "Throttling ThrottlingException ThrottledException RequestThrottled 429 RequestThrottledException "
        "TooManyRequests TooManyRequestsException SlowDown RequestLimitExceeded BandwidthLimitExceeded "
        "PriorRequestNotComplete InternalError InternalFailure InternalServerError InternalServerException "
        "ServerException ServiceException ServiceUnavailable ServiceUnavailableException RequestTimeout "
        "RequestTimeoutException 500 502 503 504",
        ServiceTroubleError,
        ", after several attempts: {stated}. Try again in some minutes; health.aws.amazon.com shows when a "
        "service is in trouble.",
    ),
)


class AwsAccount:
    """boto3's clients for one region, with our time limits and errors."""

    def __init__(self, region: str) -> None:
        """An empty `region` means AWS's own setting. Raises ConfigError for one that cannot be used."""
        from botocore.exceptions import BotoCoreError, NoRegionError
        from botocore.utils import validate_region_name

        # botocore alone reads AWS_DEFAULT_REGION; AWS's other tools, and GitHub's action, set AWS_REGION.
        named = region or ("" if os.environ.get(ROLE) else os.environ.get("AWS_REGION", ""))
        try:
            self._session = boto3_session(region=named)
            if not self._session.region_name:
                raise NoRegionError
            validate_region_name(self._session.region_name)
        except BotoCoreError as error:
            raise connection_error(error, "start", region=region) from None
        self.region = str(self._session.region_name)
        self._clients: dict[str, Any] = {}

    def call(
        self,
        service: str,
        operation: str,
        *,
        what: str = "",
        absent: Collection[str] = (),
        missing: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> Any:
        """Return the answer to one call; None when AWS answers with one of the error codes in `absent`.

        `what` completes "AWS in us-west-2 refused to …". Raises ConfigError with the text that `missing` has
        for the error code, and the errors of `_refusal` and `connection_error`.
        """
        named = what or f"carry out {service}:{''.join(word.capitalize() for word in operation.split('_'))}"
        client = self.client(service)
        return self._answer(
            lambda: getattr(client, operation)(**arguments), service, named, absent=absent, missing=missing
        )

    def pages(
        self,
        service: str,
        operation: str,
        key: str,
        *,
        what: str,
        missing: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> list[Any]:
        """Return the items at `key` of all pages of a list. Raises the errors of `call`."""
        pages = self.client(service).get_paginator(operation).paginate(**arguments)
        found: list[Any] = self._answer(
            lambda: [one for page in pages for one in page.get(key) or ()], service, what, missing=missing
        )
        return found

    def _answer(
        self,
        work: Callable[[], Any],
        service: str,
        what: str,
        *,
        absent: Collection[str] = (),
        missing: Mapping[str, str] | None = None,
    ) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return work()
        except ClientError as error:
            code, message = code_of(error)
        except BotoCoreError as error:
            raise connection_error(error, what, region=self.region) from None
        if code in absent:
            return None
        if missing and code in missing:
            raise ConfigError(missing[code])
        raise _refusal(code, message, what, service=service, region=self.region)

    def identity(self) -> tuple[str, str]:
        """Return the number of the account, and its partition."""
        answer = self.call("sts", "get_caller_identity")
        return str(answer["Account"]), str(answer["Arn"]).split(":")[1]

    def client(self, service: str) -> Any:
        """Return the client of a service, made on first use (0.2 s). Raises ConfigError, ServiceError."""
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        if service not in self._clients:
            # The bounded retries cover throttling.
            retries = {"mode": "standard", "total_max_attempts": 4}
            settings = Config(connect_timeout=5, read_timeout=30, retries=retries)
            try:
                self._clients[service] = self._session.client(service, config=settings)
            except BotoCoreError as error:
                raise connection_error(error, f"use {service}", region=self.region) from None
            except ValueError as error:
                raise ConfigError(f"The AWS settings cannot be used: {error}") from None
        return self._clients[service]


def code_of(error: Any) -> tuple[str, str]:
    """Return the code and the message of botocore's ClientError."""
    found: Mapping[str, Any] = error.response.get("Error", {})
    return str(found.get("Code", "")), str(found.get("Message", "")).strip()


def _refusal(code: str, message: str, what: str, *, service: str, region: str) -> ServiceError:
    """Return the error for a refused call; `what` completes "AWS in us-west-2 cannot …"."""
    where, stated = f"AWS in {region} refused to {what}", f"{code}: {message}" if message else code
    # The response to a HEAD request has no other code.
    known = "ExpiredToken" if service == "s3" and code == "400" else code
    for codes, kind, text in _REFUSALS:
        if known in codes.split():
            return kind(where + text.replace("{code}", code).replace("{stated}", stated))
    return ServiceError(f"{where} ({stated or 'without a reason'})")


def connection_error(error: Exception, what: str, *, region: str) -> ConfigError | ServiceError:
    """Return the error for a call that botocore could not make: no credentials, wrong settings, no answer."""
    from botocore import exceptions as botocore

    message = " ".join(str(error).split()).rstrip(".")
    if isinstance(error, botocore.NoRegionError | botocore.InvalidRegionError):
        return ConfigError(f"{message}; name a region with --region, such as us-west-2")
    if isinstance(error, botocore.ParamValidationError):
        return ConfigError(f"Cannot {what}: {message}")
    settings = (
        *(botocore.ProfileNotFound, botocore.ConfigNotFound, botocore.ConfigParseError),
        botocore.InvalidConfigError,
    )
    if isinstance(error, settings):
        return ConfigError(f"The AWS settings cannot be used to {what}: {message} (AWS_PROFILE, ~/.aws)")
    if isinstance(error, botocore.NoCredentialsError):
        return CredentialsRefusedError(
            f"There are no AWS credentials to {what} with; set AWS_PROFILE, or log in with aws sso login"
        )
    credentials = (
        *(botocore.PartialCredentialsError, botocore.CredentialRetrievalError, botocore.SSOError),
        *(botocore.TokenRetrievalError, botocore.NoAuthTokenError, botocore.LoginError),
    )
    if isinstance(error, credentials):
        return CredentialsRefusedError(
            f"The AWS credentials cannot be used to {what}: {message}. Log in again (aws sso login), or set "
            "AWS_PROFILE to another profile."
        )
    return ServiceTroubleError(
        f"AWS in {region} could not be reached to {what}: {message}. If the name of the region is right, "
        "check the network."
    )
