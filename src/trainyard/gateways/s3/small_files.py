"""Send or fetch many small files at once with awscrt's S3 client, in a tenth of boto3's time per request.

boto3 stays in charge. A request that it made is the pattern for the others, which differ in the key, the
body and its checksum. A file that is not moved here, for whatever reason, is moved by boto3 afterwards:
boto3 retries, renews credentials, uses the store's clock and explains failures. The caller compares
every file as if boto3 had moved it.
"""

import functools
import logging
import os
import re
import time
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
"""Fewer files are moved by boto3's threads before this client has started."""
_FILES_AT_ONCE = 512
"""Each is an open file; with the connections they stay below the usual limit of 1,024."""
_BYTES_AT_ONCE = 32 << 20
"""With more, a slow line is shared by so many files that none is complete in time."""
_CONNECTIONS = 256
_MOST_FAILURES = 16
"""After this many failures boto3 moves the rest, because it handles the cause."""
_CANCEL_SECONDS = 5.0
_KEPT_HEADERS = re.compile(
    r"user-agent|x-amz-(meta-.*|server-side-encryption.*|request-payer|sdk-checksum-algorithm)", re.IGNORECASE
)
_SCOPE = re.compile(r"AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/(?P<region>[a-z0-9-]+)/s3/aws4_request,")
_logger = logging.getLogger(__name__)


class SmallFile(NamedTuple):
    """A file to send, or the place for one to fetch."""

    key: str
    """The complete key, with the store's prefix."""
    path: Path
    size: int
    sha256: str = ""
    """Base64, of a file to send: S3 refuses other bytes."""


@dataclass(frozen=True)
class Pattern:
    """A request of boto3's without its key and body, from which the requests for all files are made."""

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

    None if awscrt would take another route than boto3 (it uses no proxy), sign otherwise, or use cryptography
    that is not approved at a FIPS endpoint.
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


OnMoved = Callable[[SmallFile, Mapping[str, str]], None]
"""Receives a file that was sent or fetched, and the response's headers, with names in lower case."""


def move(pattern: Pattern, files: Iterable[SmallFile], on_moved: OnMoved, *, patience_seconds: float) -> bool:
    """Send or fetch `files`. Return False if boto3 should be preferred from now on.

    It is False after several failures, or when no file was complete for `patience_seconds`; the rest is then
    not tried. Never raises for a failed request, after which a fetched file may exist in part.
    """
    from awscrt.exceptions import AwsCrtError
    from botocore.exceptions import BotoCoreError

    try:
        client = _client(pattern)
    except (AwsCrtError, BotoCoreError, OSError, RuntimeError) as error:
        _logger.debug("awscrt cannot be used: %s", error)
        return False
    batch = _Batch(pattern, client, on_moved)
    try:
        for file in files:
            while batch.is_full(file.size):
                batch.wait_for_one(patience_seconds)
            if batch.failures >= _MOST_FAILURES:
                return False
            batch.start(file)
        while batch.running:
            batch.wait_for_one(patience_seconds)
    except Empty:
        _logger.debug("%s: no file was complete for %s s", pattern.host, patience_seconds)
        return False
    finally:
        batch.end()
    return batch.failures < _MOST_FAILURES


class _Batch:
    """The files whose transfer is in progress."""

    def __init__(self, pattern: Pattern, client: Any, on_moved: OnMoved) -> None:
        self.running: dict[int, Any] = {}
        """awscrt's request for each file, by the file's number; None until it is made."""
        self.failures = 0
        self._pattern, self._client, self._on_moved = pattern, client, on_moved
        self._started = self._bytes = 0
        self._ended = SimpleQueue[tuple[int, SmallFile, Exception | None, dict[str, str]]]()

    def is_full(self, size: int) -> bool:
        """Return whether a file of `size` bytes must wait for another to end."""
        more = len(self.running) >= _FILES_AT_ONCE or self._bytes + size > _BYTES_AT_ONCE
        return more and bool(self.running)

    def start(self, file: SmallFile) -> None:
        from awscrt.http import HttpHeaders, HttpRequest
        from awscrt.s3 import S3RequestType

        number, response_headers = self._started, dict[str, str]()

        def on_headers(headers: list[tuple[str, str]], **_: Any) -> None:
            response_headers.update((name.lower(), value) for name, value in headers)

        def on_done(error: Exception | None = None, **_: Any) -> None:
            self._ended.put((number, file, error, response_headers))

        headers = [("host", self._pattern.host), *self._pattern.headers]
        if self._pattern.method == "PUT":
            headers += [("content-length", str(file.size)), ("x-amz-checksum-sha256", file.sha256)]
            how = {"operation_name": "PutObject", "send_filepath": str(file.path), "on_headers": on_headers}
        else:
            headers += [("content-length", "0"), ("range", f"bytes=0-{file.size}")]  # shows if there is more
            how = {"operation_name": "GetObject", "recv_filepath": str(file.path)}
        self._started += 1
        self._bytes += file.size
        self.running[number] = None  # before it is made, so that an interrupt finds it
        try:
            path = self._pattern.folder + quote(file.key, safe="/~")
            request = HttpRequest(self._pattern.method, path, HttpHeaders(headers))
            self.running[number] = self._client.make_request(
                type=S3RequestType.DEFAULT, request=request, on_done=on_done, **how
            )
        except (
            RuntimeError,
            UnicodeEncodeError,
        ) as error:  # a file that cannot be opened, a name not in UTF-8
            on_done(error)

    def wait_for_one(self, seconds: float) -> None:
        """Wait for the next file that ends. Raises Empty when none does within `seconds`."""
        number, file, error, response_headers = self._ended.get(timeout=seconds)
        self._bytes -= file.size
        self.running.pop(number, None)
        if error is None:
            self._on_moved(file, response_headers)
        else:
            self.failures += 1
            _logger.debug("%s: %s", file.key, error)

    def end(self) -> None:
        """Cancel the remaining requests, wait a while for their end, and take the files that are complete."""
        requests = [request for request in self.running.values() if request is not None]
        for request in requests:
            request.cancel()
        deadline = time.monotonic() + _CANCEL_SECONDS
        while time.monotonic() < deadline:
            # Not by `running`: an interrupt may have come after a file was taken from the queue.
            are_over = all(request.finished_future.done() for request in requests)
            try:
                self.wait_for_one(0 if are_over else 0.1)
            except Empty:
                if are_over:
                    return
        _logger.debug("some of %d requests do not end", len(requests))


@functools.cache
def _bootstrap() -> Any:
    """Return the threads for all connections of this process."""
    from awscrt.io import ClientBootstrap, DefaultHostResolver, EventLoopGroup

    loops = EventLoopGroup(2)
    return ClientBootstrap(loops, DefaultHostResolver(loops))


def _client(pattern: Pattern) -> Any:
    from awscrt.auth import AwsCredentialsProvider
    from awscrt.s3 import S3Client, S3RequestTlsMode, S3RetryConfig, create_default_s3_signing_config

    frozen = pattern.connection.credentials.get_frozen_credentials()
    provider = AwsCredentialsProvider.new_static(frozen.access_key, frozen.secret_key, frozen.token)
    is_secure = pattern.scheme == "https"
    return S3Client(
        bootstrap=_bootstrap(),
        region=pattern.region,
        tls_mode=S3RequestTlsMode.ENABLED if is_secure else S3RequestTlsMode.DISABLED,
        tls_connection_options=_trust(pattern.connection.ca_bundle) if is_secure else None,
        signing_config=create_default_s3_signing_config(region=pattern.region, credential_provider=provider),
        throughput_target_gbps=100,
        max_active_connections_override=_CONNECTIONS,
        retry_config=S3RetryConfig(max_retries=1, backoff_scale_factor_ms=50),
    )


def _trust(ca_bundle: str | None) -> Any:
    """Return options with the certificates that boto3 trusts."""
    from awscrt.io import ClientTlsContext, TlsContextOptions
    from botocore.httpsession import get_cert_path

    options = TlsContextOptions()
    bundle = ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE") or get_cert_path(True)
    options.override_default_trust_store_from_path(ca_filepath=bundle)
    return ClientTlsContext(options).new_connection_options()
