"""Find multipart uploads that were never completed, and the parts that S3 has of one.

This needs s3:ListBucketMultipartUploads and s3:ListMultipartUploadParts; without them nothing is found, and
the file is sent from its start.
"""

import base64
import contextlib
import hashlib
from dataclasses import dataclass
from typing import Any

from trainyard.errors import ServiceError, VerificationError
from trainyard.gateways.s3.bucket import Bucket
from trainyard.gateways.s3.checksums import Algorithm

_LISTED_PARTS = 1000


@dataclass(frozen=True)
class StoredPart:
    """A part that S3 has."""

    etag: str
    size: int
    checksum: bytes
    """Checksum by the upload's algorithm; empty if S3 does not report it."""

    def holds(self, content: bytes | memoryview, checksum: bytes, algorithm: Algorithm) -> bool:
        """Return whether the part is `content`, by a SHA-256 or else by an ETag that is its MD5.

        Anyone with write access can have started the upload, and a CRC64NVME can be forged.
        """
        if self.checksum and self.checksum != checksum:
            return False
        if self.checksum and algorithm is Algorithm.SHA256:
            return True
        return self.etag.strip('"') == hashlib.md5(content, usedforsecurity=False).hexdigest()


def newest_unfinished(bucket: Bucket, key: str, algorithm: Algorithm) -> str:
    """Return the id of the newest upload of `key` with this checksum; empty if there is none."""
    with contextlib.suppress(ServiceError, VerificationError, KeyError):  # of a damaged response
        answer, _ = bucket.about("list_multipart_uploads", Prefix=bucket.prefix + key)
        uploads = [
            each for each in (answer or {}).get("Uploads", []) if _is(each, bucket.prefix + key, algorithm)
        ]
        if uploads:
            return str(max(uploads, key=lambda each: each["Initiated"])["UploadId"])
    return ""


def stored_parts(bucket: Bucket, key: str, upload_id: str, *, algorithm: Algorithm) -> dict[int, StoredPart]:
    """Return the parts that S3 has, by number; none if they may not be listed or the response is damaged."""
    found: dict[int, StoredPart] = {}
    with contextlib.suppress(ServiceError, VerificationError, ValueError, KeyError):  # bad base64 or number
        further: dict[str, int] = {}
        while True:
            page = bucket.call(
                "list_parts",
                key,
                unless=("NoSuchUpload",),
                UploadId=upload_id,
                MaxParts=_LISTED_PARTS,
                **further,
            )
            for each in (page or {}).get("Parts", []):
                value = base64.b64decode(each.get(f"Checksum{algorithm}", ""))
                found[int(each["PartNumber"])] = StoredPart(str(each["ETag"]), int(each["Size"]), value)
            if page is None or not page.get("IsTruncated"):
                return found
            further = {"PartNumberMarker": int(page["NextPartNumberMarker"])}
    return {}


def _is(upload: dict[str, Any], key: str, algorithm: Algorithm) -> bool:
    """Return whether the upload has this key and checksum.

    Some stores do not report the checksum; a wrong one is refused when the first part arrives.
    """
    return bool(upload["Key"] == key and upload.get("ChecksumAlgorithm", algorithm) == algorithm)
