"""Send or fetch many small files at once with awscrt's S3 client, in a tenth of boto3's time per request.

boto3 stays in charge. A request that it made is the pattern for the others, which differ in the key, the
body and its checksum. A file that is not moved here, for whatever reason, is moved by boto3 afterwards:
boto3 retries, renews credentials, goes by the store's clock and explains what failed. The caller compares
every file as if boto3 had moved it.
"""

import functools
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from trainyard.gateways.s3.access import Connection

SMALL_BYTES = 256 << 10
"""Larger files are few enough per second for boto3."""
LEAST_FILES = 32
"""Fewer are moved by boto3's threads before this client has started."""
_AT_ONCE = 512
"""Files in work. Each has an open file, so the usual limit of 1,024 open files is kept."""
_CONNECTIONS = 256
_MOST_FAILURES = 16
"""After that many, the rest is left to boto3, which knows what to do about the cause."""
_LET_GO_SECONDS = 5.0
_KEPT_HEADERS = re.compile(
    r"user-agent|x-amz-(meta-.*|server-side-encryption.*|request-payer|sdk-checksum-algorithm)", re.IGNORECASE
)
_SCOPE = re.compile(r"AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/(?P<region>[a-z0-9-]+)/s3/aws4_request,")
_logger = logging.getLogger(__name__)


class SmallFile(NamedTuple):
    """A file to send, or the place for one to fetch."""

    key: str
    """The whole key, with the store's prefix."""
    path: Path
    size: int
    sha256: str = ""
    """Base64, of a file to send: S3 refuses other bytes."""


@dataclass(frozen=True)
class Pattern:
    """What the requests for all files have in common."""

    method: str
    scheme: str
    host: str
    folder: str
    """The path before the key."""
    region: str
    headers: tuple[tuple[str, str], ...]
    connection: Connection = field(repr=False)


def pattern_of(request: Any, key: str, *, method: str, connection: Connection) -> Pattern | None:
    """Return the pattern of a request that boto3 signed and sent for `key`.

    None if awscrt would go another way than boto3: through no proxy, with another kind of signature, or with
    cryptography that is not approved where a FIPS endpoint is demanded.
    """
    from botocore.utils import get_environ_proxies

    url, quoted = urlsplit(request.url), quote(key, safe="/~")
    headers = {
        name: value if isinstance(value, str) else value.decode() for name, value in request.headers.items()
    }
    scope = _SCOPE.match(headers.get("Authorization", ""))
    if scope is None or url.query or not url.path.endswith(f"/{quoted}") or "fips" in url.netloc:
        return None
    if get_environ_proxies(request.url):
        return None
    kept = tuple((name, value) for name, value in headers.items() if _KEPT_HEADERS.fullmatch(name))
    folder = url.path.removesuffix(quoted)
    return Pattern(method, url.scheme, url.netloc, folder, scope["region"], kept, connection)


def move(
    pattern: Pattern,
    files: Iterable[SmallFile],
    moved: Callable[[SmallFile, Mapping[str, str]], None],
    *,
    patience_seconds: float,
) -> None:
    """Send or fetch `files`; call `moved` with each one that was, and with the response's headers.

    Ends early after several failures, or when nothing arrives for so long. Never raises for a failed request.
    A fetched file may be there in part then.
    """
    from awscrt.exceptions import AwsCrtError
    from botocore.exceptions import BotoCoreError

    try:
        client = _client(pattern)
    except (AwsCrtError, BotoCoreError, OSError, RuntimeError) as error:
        _logger.debug("awscrt cannot be used: %s", error)
        return
    batch = _Batch(pattern, client, moved)
    try:
        for file in files:
            if len(batch.running) >= _AT_ONCE:
                batch.take_one(patience_seconds)
            if batch.failures >= _MOST_FAILURES:
                return
            batch.begin(file)
        while batch.running and batch.failures < _MOST_FAILURES:
            batch.take_one(patience_seconds)
    except Empty:
        _logger.debug("%s: nothing arrived for %s s", pattern.host, patience_seconds)
    finally:
        batch.end()


class _Batch:
    """The files that are on their way."""

    def __init__(
        self, pattern: Pattern, client: Any, moved: Callable[[SmallFile, Mapping[str, str]], None]
    ) -> None:
        self.running: dict[str, Any] = {}
        """awscrt's request for each key."""
        self.failures = 0
        self._pattern, self._client, self._moved = pattern, client, moved
        self._ended = SimpleQueue[tuple[SmallFile, Exception | None, dict[str, str]]]()
        """File, error or None, and the response's headers in lower case."""

    def begin(self, file: SmallFile) -> None:
        from awscrt.http import HttpHeaders, HttpRequest
        from awscrt.s3 import S3RequestType

        told: dict[str, str] = {}

        def on_headers(headers: list[tuple[str, str]], **_: Any) -> None:
            told.update((name.lower(), value) for name, value in headers)

        def on_done(error: Exception | None = None, **_: Any) -> None:
            self._ended.put((file, error, told))

        headers = [("host", self._pattern.host), *self._pattern.headers]
        if self._pattern.method == "PUT":
            headers += [("content-length", str(file.size)), ("x-amz-checksum-sha256", file.sha256)]
            how = {"operation_name": "PutObject", "send_filepath": str(file.path), "on_headers": on_headers}
        else:
            headers += [("content-length", "0"), ("range", f"bytes=0-{file.size}")]  # shows if there is more
            how = {"operation_name": "GetObject", "recv_filepath": str(file.path)}
        path = self._pattern.folder + quote(file.key, safe="/~")
        request = HttpRequest(self._pattern.method, path, HttpHeaders(headers))
        try:
            self.running[file.key] = self._client.make_request(
                type=S3RequestType.DEFAULT, request=request, on_done=on_done, **how
            )
        except RuntimeError as error:  # a file that cannot be opened
            self._count_failure(file, error)

    def take_one(self, seconds: float) -> None:
        """Wait for the next file that ends. Raises Empty when none does for so long."""
        file, error, told = self._ended.get(timeout=seconds)
        del self.running[file.key]
        if error is None:
            self._moved(file, told)
        else:
            self._count_failure(file, error)

    def _count_failure(self, file: SmallFile, error: Exception) -> None:
        self.failures += 1
        _logger.debug("%s: %s", file.key, error)

    def end(self) -> None:
        """Stop what is still under way, so that nothing writes a file any more."""
        for request in self.running.values():
            request.cancel()
        try:
            while self.running:
                del self.running[self._ended.get(timeout=_LET_GO_SECONDS)[0].key]
        except Empty:
            _logger.debug("%d requests do not end", len(self.running))


@functools.cache
def _bootstrap() -> Any:
    """The threads for all connections of this process."""
    from awscrt.io import ClientBootstrap, DefaultHostResolver, EventLoopGroup

    loops = EventLoopGroup(2)
    return ClientBootstrap(loops, DefaultHostResolver(loops))


def _client(pattern: Pattern) -> Any:
    from awscrt.auth import AwsCredentialsProvider
    from awscrt.io import ClientTlsContext, TlsContextOptions
    from awscrt.s3 import S3Client, S3RequestTlsMode, S3RetryConfig, create_default_s3_signing_config

    frozen = pattern.connection.credentials.get_frozen_credentials()
    provider = AwsCredentialsProvider.new_static(frozen.access_key, frozen.secret_key, frozen.token)
    tls = TlsContextOptions()
    if pattern.connection.ca_bundle:
        tls.override_default_trust_store_from_path(ca_filepath=pattern.connection.ca_bundle)
    return S3Client(
        bootstrap=_bootstrap(),
        region=pattern.region,
        tls_mode=S3RequestTlsMode.ENABLED if pattern.scheme == "https" else S3RequestTlsMode.DISABLED,
        tls_connection_options=ClientTlsContext(tls).new_connection_options(),
        signing_config=create_default_s3_signing_config(region=pattern.region, credential_provider=provider),
        throughput_target_gbps=100,
        max_active_connections_override=_CONNECTIONS,
        retry_config=S3RetryConfig(max_retries=1, backoff_scale_factor_ms=50),
    )
