"""The address of a store: open the store at `s3://bucket/prefix` or `file:///folder`, or judge its address.

The kinds of stores are in `config.registries`; the module of a kind is imported when its address is opened.
The store of a run is that of the command line, else that of the run's own configuration.
"""

import os
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from trainyard.config.registries import STORE_SCHEMES, store_examples
from trainyard.errors import ConfigError, DamagedFileError
from trainyard.run.directory import RunDirectory
from trainyard.run.run_settings import read_settings, setting
from trainyard.run.untrusted_files import read_bytes

if TYPE_CHECKING:
    from trainyard.artifacts.store.object_store import Store
    from trainyard.gateways.s3.bucket_setup import BucketSetup

# Default time limit of one read or write on the connection to a store.
CALL_SECONDS = 30.0
# The folder that is the store of a run for which none is named.
LOCAL_STORE = "trainyard-store"
_URL = re.compile(r"(?P<scheme>[a-z0-9]+)://(?P<rest>.*)", re.DOTALL)


class StoreOptions(TypedDict, total=False):
    """The options of a store; a kind of store reads those that apply to it."""

    encryption: str
    """Requested from S3 for every object: `AES256` (the default), `aws:kms` or `none`."""
    call_seconds: float
    """Time limit of one read or write on the connection."""
    pace: Callable[[int], None]
    """Called with the number of bytes before each block of a file is read; it may wait."""
    attempts: int | None
    """The most attempts per call, below AWS_MAX_ATTEMPTS."""
    part_bytes: int | None
    """Send every file above this size to S3 in parts of this size, for a check; None for a run."""


def local_store() -> str:
    """Return the address of the store of a run for which none is named."""
    return Path(LOCAL_STORE).absolute().as_uri()


def open_store(url: str, **options: Unpack[StoreOptions]) -> "Store":
    """Open the store at `url`, such as `s3://bucket/prefix` or `file:///folder`. It sends nothing yet.

    Raises ConfigError for any other URL.
    """
    module, rest = _kind_of_store(url)
    given: StoreOptions = {"encryption": "AES256", "call_seconds": CALL_SECONDS, **options}
    store: Store = module.open_at(url, rest, given)
    return store


def require_address(url: str) -> None:
    """Raise ConfigError when `url` is not an address of a store. Nothing is opened."""
    module, rest = _kind_of_store(url)
    module.require_address(url, rest)


def local_store_folder(url: str) -> Path | None:
    """The folder of a store at `file:///folder`; None for a bucket and for any other text."""
    match = _URL.fullmatch(url)
    if not match or match["scheme"] != "file":
        return None
    try:
        folder: Path = import_module(STORE_SCHEMES["file"].module).folder_at(url, match["rest"])
        return folder
    except ConfigError:
        return None


def names_a_store(url: str) -> bool:
    """Return whether `url` is written as the address of a store is."""
    try:
        require_address(url)
    except ConfigError:
        return False
    return True


def open_setup(url: str, *, encryption: str) -> "BucketSetup":
    """The settings of the bucket in `url`. Raises ConfigError for a folder, which has no settings."""
    match = _URL.fullmatch(url)
    if not match or match["scheme"] != "s3":
        raise ConfigError(f"{url}: only a bucket has settings to check; write s3://bucket/prefix")
    module = import_module(STORE_SCHEMES["s3"].module)
    setup: BucketSetup = module.open_setup(url, match["rest"], encryption, CALL_SECONDS)
    return setup


def _kind_of_store(url: str) -> tuple[Any, str]:
    """Import the module for the scheme of `url`; also return what follows the scheme."""
    match = _URL.fullmatch(url)
    entry = STORE_SCHEMES.get(match["scheme"]) if match else None
    if match is None or entry is None:
        raise ConfigError(f"{url[:80] or '(empty)'}: not a store; write {store_examples()}{_meant(url)}")
    return import_module(entry.module), match["rest"]


def _meant(url: str) -> str:
    """Return the address that a path or the name of a bucket without its scheme means."""
    path = os.path.abspath(os.path.expanduser(url))  # noqa: PTH100, PTH111 - these never raise
    if url.startswith(("/", "./", "../", "~/")) or (url and os.path.isdir(path)):  # noqa: PTH112
        return f"; did you mean {Path(path).as_uri()}?"
    return f"; did you mean s3://{url}?" if names_a_store(f"s3://{url}") else ""


def open_store_of(
    run_dir: Path | None, url: str | None, options: StoreOptions, pace: Callable[[int], None]
) -> "Store":
    """Open the store at `url`, or else that of the run's configuration, whose encryption is the default."""
    chosen, encryption = store_settings(run_dir, url=url, encryption=options.get("encryption"))
    completed: StoreOptions = {**options, "encryption": encryption, "pace": pace}
    return open_store(chosen, **completed)


def store_settings(run_dir: Path | None, *, url: str | None, encryption: str | None) -> tuple[str, str]:
    """Return URL and encryption, completed from the run's `config.yaml`.

    Raises ConfigError when no store is named.
    """
    settings = _settings(run_dir) if run_dir is not None else {}
    chosen = url or setting(settings, "artifacts.store")
    if not chosen:
        raise ConfigError("No store: give --store, or set artifacts.store in the configuration.")
    return chosen, encryption or setting(settings, "artifacts.encryption") or "AES256"


def _settings(run_dir: Path) -> dict[str, Any]:
    if not run_dir.is_dir():
        raise ConfigError(f"{run_dir}: the run directory does not exist")
    path = RunDirectory(run_dir).config_file
    try:
        return read_settings(read_bytes(path), str(path))
    except FileNotFoundError:
        return {}
    except DamagedFileError as error:
        raise ConfigError(str(error)) from None
