"""Uploads in parts that were begun and never completed: which there are, and what S3 has of one.

Looking needs s3:ListBucketMultipartUploads and s3:ListMultipartUploadParts; without them nothing is found,
and the file goes from its start.
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
    """A part as S3 has it."""

    etag: str
    size: int
    checksum: bytes
    """Of the algorithm of the upload; empty where S3 does not tell."""

    def holds(self, content: bytes | memoryview, checksum: bytes, algorithm: Algorithm) -> bool:
        """Whether it is `content`: by a SHA-256, else by an ETag that is its MD5.

        Anyone who may write can have begun the upload, and a CRC64NVME can be forged.
        """
        if self.checksum and self.checksum != checksum:
            return False
        if self.checksum and algorithm is Algorithm.SHA256:
            return True
        return self.etag.strip('"') == hashlib.md5(content, usedforsecurity=False).hexdigest()


def newest_unfinished(bucket: Bucket, key: str, algorithm: Algorithm) -> str:
    """The id of the upload of `key` that was begun last with this checksum; empty if there is none."""
    with contextlib.suppress(ServiceError, VerificationError, KeyError):  # of an answer that is damaged
        answer, _ = bucket.about("list_multipart_uploads", Prefix=bucket.prefix + key)
        uploads = [
            each for each in (answer or {}).get("Uploads", []) if _is(each, bucket.prefix + key, algorithm)
        ]
        if uploads:
            return str(max(uploads, key=lambda each: each["Initiated"])["UploadId"])
    return ""


def stored_parts(bucket: Bucket, key: str, upload_id: str, *, algorithm: Algorithm) -> dict[int, StoredPart]:
    """What S3 has of an upload, by number; nothing where the role may not look or the answer is damaged."""
    found: dict[int, StoredPart] = {}
    with contextlib.suppress(ServiceError, VerificationError, ValueError, KeyError):  # no base64, no number
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
    """Some stores do not tell the checksum; a wrong one is refused when a part comes, at the latest."""
    return bool(upload["Key"] == key and upload.get("ChecksumAlgorithm", algorithm) == algorithm)
