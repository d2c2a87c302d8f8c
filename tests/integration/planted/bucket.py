"""A finished run whose store is a bucket of a real S3 server.

The folder `store` mirrors the bucket: damage planted there is copied into the bucket before it is judged, and
undone afterwards. So the same code makes the situations of a folder and of a bucket.
"""

import base64
import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.planted.yard import Yard


@dataclass(frozen=True)
class Bucket:
    """A bucket, which tests change as another client that may write into it."""

    name: str
    client: Any
    """A boto3 client."""
    held: dict[str, bytes] = field(default_factory=dict)
    """The bytes of each object, by key."""

    def fetch(self, folder: Path) -> None:
        """Write every object to a file."""
        self.held.clear()
        for key in self._keys():
            self.held[key] = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
            (folder / key).parent.mkdir(parents=True, exist_ok=True)
            (folder / key).write_bytes(self.held[key])

    def become(self, folder: Path) -> None:
        """Make the bucket equal to the folder: put or delete each object that differs."""
        paths = (path for path in folder.rglob("*") if path.is_file())
        wanted = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        for key in self.held.keys() - wanted.keys():
            self.client.delete_object(Bucket=self.name, Key=key)
            del self.held[key]
        for key, content in wanted.items():
            if self.held.get(key) != content:
                digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
                self.client.put_object(Bucket=self.name, Key=key, Body=content, ChecksumSHA256=digest)
                self.held[key] = content

    def clear(self) -> None:
        for key in self._keys():
            self.client.delete_object(Bucket=self.name, Key=key)

    def _keys(self) -> list[str]:
        found = self.client.list_objects_v2(Bucket=self.name)
        assert not found["IsTruncated"]
        return [each["Key"] for each in found.get("Contents", [])]


@dataclass(frozen=True)
class BucketYard(Yard):
    """A yard that is stored in a bucket."""

    bucket: Bucket = field(kw_only=True)

    @property
    def store(self) -> str:
        return f"s3://{self.bucket.name}"

    def sync(self) -> None:
        super().sync()
        self.bucket.fetch(self.store_folder)

    def store_anew(self) -> None:
        self.bucket.clear()
        super().store_anew()

    def copy_to(self, target: Path) -> "BucketYard":
        super().copy_to(target)
        return BucketYard(target, bucket=self.bucket)

    @contextmanager
    def damaged(self, plant: Callable[[Yard], None]) -> Iterator[Yard]:
        try:
            with super().damaged(plant) as copy:
                self.bucket.become(copy.store_folder)
                yield copy
        finally:
            self.bucket.become(self.store_folder)


def in_bucket(yard: Yard, bucket: Bucket, path: Path) -> BucketYard:
    """The run of a yard, stored in an empty bucket."""
    shutil.copytree(yard.run.path, path / "run", symlinks=True)
    stored = BucketYard(path, bucket=bucket)
    stored.sync()
    return stored
