"""Mark the machine of a run directory, where each machine has its own (`checkpointing.shared: false`).

    main machine     node.json and all records; its checkpoints lack the files of other machines
    other machines   node.json, config.yaml, checkpoints with their own files, logs

Every machine has the complete manifest of each checkpoint. Storing reads this mark to know what to send.
"""

import contextlib
from dataclasses import asdict, replace
from pathlib import Path

from pydantic.dataclasses import dataclass

from trainyard.errors import ConfigError, DamagedFileError
from trainyard.run.atomic_files import write_json_atomically
from trainyard.run.directory import RunDirectory
from trainyard.run.record_models import OF_A_FILE, Count, Name, Truth, validate_record
from trainyard.run.run_settings import read_settings, setting
from trainyard.run.untrusted_files import read_bytes, read_json_object

_NAME = "node.json"


@dataclass(frozen=True, config=OF_A_FILE)
class NodeFolder:
    """The run directory of one of several machines."""

    run_id: Name
    node: Count
    """Number of the machine; the main one is 0."""
    nodes: Count
    is_over: Truth = False
    """Whether the trainer has ended, so that no further checkpoint comes."""
    trained: Name | None = None
    """The SHA-256 of the configuration that was trained to its end here; None before."""

    @property
    def is_main(self) -> bool:
        """Return whether this machine has the records of the run."""
        return self.node == 0


def write_node(directory: RunDirectory, node: NodeFolder) -> None:
    """Mark the directory; that of a run with one directory loses the mark of an earlier segment."""
    if node.nodes == 1:
        forget_node(directory)
    else:
        write_json_atomically(node_file(directory), asdict(node))


def end_node(directory: RunDirectory) -> None:
    """Record that the trainer of a marked directory has ended; nothing happens to any other."""
    with contextlib.suppress(OSError, DamagedFileError):
        if (node := read_node(directory)) is not None:
            write_node(directory, replace(node, is_over=True))


def mark_trained(directory: RunDirectory, config_sha256: str) -> None:
    """Record in a marked directory that this configuration was trained to its end; others stay unmarked."""
    if (node := read_node(directory)) is not None:
        write_node(directory, replace(node, trained=config_sha256))


def forget_node(directory: RunDirectory) -> None:
    """Remove the mark of an earlier segment, so that a follower waits for the next one."""
    node_file(directory).unlink(missing_ok=True)


def read_node(directory: RunDirectory) -> NodeFolder | None:
    """Return the mark; None for a directory without one. Raises DamagedFileError when it is unreadable."""
    path = node_file(directory)
    try:
        return validate_record(NodeFolder, read_json_object(path, links=False))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DamagedFileError(f"{path}: not the mark of a machine ({error})") from None


def keeps_parts(directory: RunDirectory) -> bool:
    """Return whether the run's configuration lets each machine keep its own part of a checkpoint."""
    with contextlib.suppress(OSError, DamagedFileError, ConfigError):
        settings = read_settings(read_bytes(directory.config_file, links=False))
        return setting(settings, "checkpointing.shared") is False
    return False


def node_file(directory: RunDirectory) -> Path:
    """Return the path of the mark."""
    return directory.path / _NAME
