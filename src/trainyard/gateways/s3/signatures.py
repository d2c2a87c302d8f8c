"""AWS Signature Version 4 of a request to S3 whose body is vouched for by a signed checksum.

See https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html; a test holds it against
botocore's.
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from trainyard.gateways.s3.clock import Clock

_UNSIGNED = "UNSIGNED-PAYLOAD"


class Signer:
    """Signs for one host with credentials that may be renewed at any time."""

    def __init__(self, credentials: Any, region: str, host: str, *, clock: Clock) -> None:
        self._credentials, self._region, self._host, self._clock = credentials, region, host, clock
        self._key: tuple[tuple[str, str], bytes] = (("", ""), b"")
        """The key of a day and a secret, and what they are; derived once."""

    def signed(self, method: str, path: str, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers to send: `headers`, whose names are lower-case, and those that sign them.

        `path` is quoted, and so is the query after its `?`, whose names are in order.
        """
        credentials = self._credentials.get_frozen_credentials()
        time = self._clock.now().strftime("%Y%m%dT%H%M%SZ")
        every = {**headers, "host": self._host, "x-amz-content-sha256": _UNSIGNED, "x-amz-date": time}
        if credentials.token:
            every["x-amz-security-token"] = credentials.token
        names = sorted(every)
        lines = "".join(f"{name}:{every[name]}\n" for name in names)
        signed = ";".join(names)
        place, _, query = path.partition("?")
        request = f"{method}\n{place}\n{query}\n{lines}\n{signed}\n{_UNSIGNED}"
        scope = f"{time[:8]}/{self._region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        signature = hmac.digest(self._signing_key(time[:8], credentials.secret_key), text.encode(), "sha256")
        every["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={signed}, Signature={signature.hex()}"
        )
        return every

    def _signing_key(self, day: str, secret: str) -> bytes:
        known, key = self._key
        if known != (day, secret):
            key = f"AWS4{secret}".encode()
            for part in (day, self._region, "s3", "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._key = ((day, secret), key)
        return key
