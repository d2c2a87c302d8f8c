"""The operations of a store, on S3, and its address `s3://bucket/prefix`. It knows nothing about runs."""

import contextlib
import hashlib
import re
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.errors import ConfigError, ObjectChangedError, ServiceError, VerificationError
from trainyard.gateways import SHOWN_CHARACTERS, GatewayObject, join_chunks
from trainyard.gateways.bounded_calls import wait_before_retry
from trainyard.gateways.s3.bucket_setup import BucketSetup
from trainyard.gateways.s3.client import Bucket
from trainyard.gateways.s3.uploads import (
    CRC64NVME,
    MISSING,
    PARTS_AT_ONCE,
    TAKEN,
    Parts,
    SinglePart,
    archive_of,
    checksum_arguments,
    condition,
    crc64nvme_of,
    describe_object,
    matches_checksum,
)

if TYPE_CHECKING:
    from trainyard.artifacts.store.store_address import StoreOptions

# Larger files are sent in parts, because a failed single request starts again from the beginning.
PARTS_FROM_BYTES = 64 << 20
# Range of a large object that is read in order; of one object as many at once as parts of a file.
RANGE_BYTES = 8 << 20
# Ranges of all objects together, and parts of all files together, in memory: 128 MiB of each.
RANGES_IN_MEMORY, PARTS_IN_MEMORY = 16, 8
# Files in multipart uploads at once: they share the parts in memory, and each SHA-256 occupies a processor.
_LARGE_AT_ONCE = 4
_BEYOND = ("416", "InvalidRange")
_CHUNK_BYTES = 1 << 20
_OURS = re.compile(r"run-\d+/")


_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# An object's key has 1,024 bytes in S3; below the prefix come the run and the names of its files.
_PREFIX_BYTES = 700


def open_at(url: str, rest: str, options: "StoreOptions") -> "S3Store":
    """Open the store; `rest` is `url` after `s3://`. Raises ConfigError for an invalid address."""
    return S3Store(*bucket_of(url, rest), **options)


def require_address(url: str, rest: str) -> None:
    """Raise ConfigError when `rest` is not a bucket and prefix."""
    bucket_of(url, rest)


def open_setup(url: str, rest: str, encryption: str, call_seconds: float) -> BucketSetup:
    """Return the settings of the bucket. Raises ConfigError for an invalid address."""
    return BucketSetup(*bucket_of(url, rest), encryption=encryption, call_seconds=call_seconds)


def bucket_of(url: str, rest: str) -> tuple[str, str]:
    """Return bucket and prefix. Raises ConfigError for an invalid address."""
    if rest.startswith("arn:"):
        raise ConfigError(
            f"{url}: an ARN is not taken as a bucket. Write the alias of the access point, which ends in "
            "-s3alias or --ol-s3: s3://ALIAS/prefix"
        )
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(
            f"{url[:SHOWN_CHARACTERS]}: {bucket[:SHOWN_CHARACTERS] or '(empty)'} is not a name of a bucket "
            "(3 to 63 of a-z, 0-9, . and -)"
        )
    if len(prefix.encode(errors="surrogateescape")) > _PREFIX_BYTES:
        raise ConfigError(
            f"{url[:SHOWN_CHARACTERS]}…: a prefix of {len(prefix):,} letters; "
            f"at most {_PREFIX_BYTES} leave room for names"
        )
    return bucket, prefix.strip("/")


class S3Store:
    """A store in `bucket`; all keys are below `prefix`."""

    def __init__(
        self,
        bucket: str,
        prefix: str,
        *,
        encryption: str,
        call_seconds: float,
        pace: Callable[[int], None] = lambda _count: None,
        attempts: int | None = None,
        part_bytes: int | None = None,
    ) -> None:
        """`attempts` is per call; `part_bytes` is that of `StoreOptions`."""
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket = Bucket(
            bucket, prefix, encryption=encryption, call_seconds=call_seconds, attempts=attempts
        )
        self.prefix, self._pace = self._bucket.prefix, pace
        self._ranges, self._parts = (
            threading.Semaphore(most) for most in (RANGES_IN_MEMORY, PARTS_IN_MEMORY)
        )
        self._large = threading.Semaphore(_LARGE_AT_ONCE)
        self.part_bytes = part_bytes

    def folders(self) -> Iterator[str]:
        for page in self._bucket.pages("", Delimiter="/"):
            for entry in page.get("CommonPrefixes", []):
                yield str(entry["Prefix"]).removeprefix(self.prefix).rstrip("/")

    def list_objects(self, prefix: str) -> Iterator[GatewayObject]:
        for page in self._bucket.pages(prefix):
            for entry in page.get("Contents", []):
                key = str(entry["Key"]).removeprefix(self.prefix)
                if key.endswith("/") and not entry["Size"]:
                    continue  # an empty folder, as consoles and file system drivers make them
                etag, modified = str(entry.get("ETag", "")).strip('"'), entry.get("LastModified")
                seconds = modified.timestamp() if modified else 0.0
                yield GatewayObject(
                    key, int(entry["Size"]), etag, modified=seconds, identity=etag, archived=archive_of(entry)
                )

    def describe(self, key: str) -> GatewayObject | None:
        return describe_object(self._bucket, key)

    def read_object(self, key: str) -> bytes | None:
        for attempt in range(1, self._bucket.attempts + 1):
            stated: dict[str, Any] = {}
            try:
                content = join_chunks(key, self._read(key, 0, None, answer_to=stated))
            except FileNotFoundError:
                return None
            if matches_checksum(content, stated):
                return content
            wait_before_retry(attempt)
        raise ServiceError(
            f"{key}: its bytes from {self._bucket.endpoint} do not match its checksum, each time. "
            "Something between here and the store changes them."
        )

    def stream(self, key: str, start: int, size: int, *, identity: str = "") -> Generator[bytes, None, None]:
        """Yield a large object from several parallel ranges, a smaller one from one request."""
        if size - start <= RANGE_BYTES:
            yield from self._read(key, start, None, identity)
            return
        starts, under_way = deque(range(start, size, RANGE_BYTES)), deque[Future[bytes]]()
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            try:
                while starts or under_way:
                    # A caller that waits for its turn has no range under way that only it could take.
                    while (
                        starts
                        and len(under_way) < PARTS_AT_ONCE
                        and self._ranges.acquire(blocking=not under_way)
                    ):
                        at = starts.popleft()
                        under_way.append(
                            pool.submit(self._range, key, at, min(size, at + RANGE_BYTES), identity)
                        )
                    yield under_way[0].result()
                    under_way.popleft()
                    self._ranges.release()
            finally:
                for each in under_way:
                    each.cancel()
                    self._ranges.release()

    def _range(self, key: str, start: int, end: int, identity: str) -> bytes:
        return b"".join(self._read(key, start, end, identity))

    def _read(
        self,
        key: str,
        start: int,
        end: int | None,
        identity: str = "",
        *,
        answer_to: dict[str, Any] | None = None,
    ) -> Iterator[bytes]:
        """Yield the bytes up to `end`; a broken stream is resumed if the object is still the same.

        `answer_to` receives S3's description of the object.
        """
        from botocore.exceptions import BotoCoreError

        done, attempt, etag = start, 0, identity and f'"{identity}"'
        more = {} if answer_to is None else {"ChecksumMode": "ENABLED"}
        while end is None or done < end:
            part = {"Range": f"bytes={done}-{'' if end is None else end - 1}"} if done or end else {}
            requested = part | ({"IfMatch": etag} if etag else {})
            answer = self._bucket.call(
                "get_object", key, unless=MISSING + _BEYOND + TAKEN, **requested, **more
            )
            if answer is None:
                self._require_end(key, etag, requested)
                return
            before = done
            if answer_to is not None and not done:
                answer_to.update(answer)
            with contextlib.closing(answer["Body"]) as body:
                etag = _same(key, etag, answer)
                try:
                    for piece in body.iter_chunks(_CHUNK_BYTES):
                        yield piece
                        done += len(piece)
                    if done - before == answer["ContentLength"]:
                        return
                    raise ConnectionError("the response broke off")
                except (BotoCoreError, OSError) as error:
                    attempt = 1 if done - before >= _CHUNK_BYTES else attempt + 1
                    if attempt >= self._bucket.attempts:
                        raise ServiceError(self._bucket.refusal_text("get_object", error)) from None
            wait_before_retry(attempt)

    def _require_end(self, key: str, etag: str, requested: Mapping[str, str]) -> None:
        """Return if S3 refused the read because the object ends before its start; otherwise raise."""
        found = self.describe(key) if requested else None
        if found is None:
            raise FileNotFoundError(key)
        _same(key, etag, {"ETag": f'"{found.etag}"'})
        if "Range" not in requested:
            raise ObjectChangedError(f"{key}: was temporarily another object while it was read")

    def put_new(self, key: str, content: bytes, *, metadata: Mapping[str, str]) -> bool:
        arguments = _content_arguments(content, metadata) | condition("")
        return self._bucket.create("put_object", key, unless=TAKEN, **arguments) is not None

    def accepts_again(self, key: str, content: bytes) -> bool:
        arguments = checksum_arguments(CRC64NVME, crc64nvme_of(content)) | condition("")
        return self._bucket.create("put_object", key, unless=TAKEN, Body=content, **arguments) is not None

    def swap(self, key: str, old: bytes, new: bytes, *, metadata: Mapping[str, str]) -> bool:
        found = self.describe(key)  # read before the bytes, so that a later change has another ETag
        if found is None or self.read_object(key) != old:
            return False
        arguments = _content_arguments(new, metadata)
        answer = self._bucket.create(
            "put_object", key, unless=TAKEN + MISSING, **condition(found.etag), **arguments
        )
        return answer is not None

    def delete(self, key: str) -> None:
        self._bucket.call("delete_object", key, unless=MISSING)

    def stage(
        self, path: Path, key: str, *, metadata: Mapping[str, str], replaces: str = ""
    ) -> SinglePart | Parts:
        how: dict[str, Any] = {"metadata": metadata, "pace": self._pace, "replaces": replaces}
        if path.stat().st_size <= (self.part_bytes or PARTS_FROM_BYTES):
            return SinglePart(self._bucket, key, path, **how)
        upload = Parts(self._bucket, key, path, slots=self._parts, part_size=self.part_bytes, **how)
        with self._large:
            upload.send()
        return upload

    def refuses_to_join(self, key: str) -> bool:
        upload_id = str(self._bucket.create("create_multipart_upload", key)["UploadId"])
        part = self._bucket.call("upload_part", key, UploadId=upload_id, PartNumber=1, Body=b" ")
        joined = self._bucket.call(
            "complete_multipart_upload",
            key,
            unless=TAKEN,
            UploadId=upload_id,
            MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": str(part["ETag"])}]},
            **condition(""),
        )
        if joined is None:
            with contextlib.suppress(ServiceError, VerificationError):
                self._bucket.call("abort_multipart_upload", key, UploadId=upload_id)
        return joined is None

    def sweep(self, older_than_seconds: float) -> int:
        """Abort old uploads by the store's clock. If listing them is denied, the lifecycle rule does it."""
        swept = 0
        with contextlib.suppress(ServiceError, VerificationError, KeyError):
            answer, _ = self._bucket.about("list_multipart_uploads", Prefix=f"{self.prefix}run-")
            for upload in (answer or {}).get("Uploads", []):
                key = str(upload["Key"]).removeprefix(self.prefix)
                now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
                age = (now - upload["Initiated"]).total_seconds()
                if _OURS.match(key) and age > older_than_seconds:
                    abort = ("abort_multipart_upload", key)
                    self._bucket.call(*abort, unless=("NoSuchUpload",), UploadId=upload["UploadId"])
                    swept += 1
        return swept


def _content_arguments(content: bytes, metadata: Mapping[str, str]) -> dict[str, Any]:
    checksum = checksum_arguments("SHA256", hashlib.sha256(content).digest())
    return {"Body": bytearray(content), "Metadata": dict(metadata), **checksum}


def _same(key: str, etag: str, answer: Mapping[str, Any]) -> str:
    """Return the ETag of S3's response if it is unchanged: some stores ignore If-Match."""
    found = str(answer.get("ETag", ""))
    if etag and found and found.strip('"') != etag.strip('"'):
        raise ObjectChangedError(f"{key}: became another object while it was read")
    return found or etag
