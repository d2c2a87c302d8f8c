"""Compare a configuration as it was given with that of a run, where open values are resolved.

    as given ──values of the run for the open ones──> as the run has it ──> the same configuration, or another

Values that can be open: architecture, tokenizer and commit of the weights, and the commit of a dataset. This
module imports no torch, so that launchers can import it before they start.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainyard.config.load import config_sha256, load_config, values_sha256
from trainyard.config.schema import Config
from trainyard.errors import ConfigError, TrainyardError
from trainyard.run.checkpoint_manifest import is_complete
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.node_folder import read_node
from trainyard.run.run_settings import read_settings
from trainyard.run.situation import differences, flat_values, inputs_of, recorded_run

# The sections that affect only the work before and after training.
_AROUND_TRAINING = frozenset(("artifacts", "cluster", "notifications"))


def has_been_trained(
    run_directory: Path,
    path: Path,
    overrides: Sequence[str],
    *,
    given: Config | None = None,
) -> bool:
    """Return whether the configuration was trained to its end in the run directory.

    `given` is the configuration where it is loaded already.
    """
    directory = RunDirectory(run_directory)
    recorded = tuple(_trained_configs(directory))
    if not recorded:
        return False
    given = given or load_config(path, overrides).config
    if config_sha256(given) in recorded:
        return True
    with suppress(TrainyardError, OSError):
        wanted = given if given.is_program else config_of_run(path, overrides, run_directory)
        return any(is_config_of(directory, digest, wanted) for digest in recorded)
    return False


def _trained_configs(directory: RunDirectory) -> Iterator[str]:
    """Yield the digests on record of configurations that were trained to their end."""
    with suppress(TrainyardError, OSError):
        node = read_node(directory)
        if node is not None and node.trained is not None:
            yield node.trained
    with suppress(TrainyardError, OSError):
        run = read_run(directory.run_file)
        if recorded_run(run).has_succeeded and "config_sha256" in run:
            yield str(run["config_sha256"])


def config_of_run(path: Path, overrides: Sequence[str], run_directory: Path | None) -> Config:
    """Return the configuration, with the values of the run in `run_directory` for those that are open.

    Raises what `load_with_weights` raises.
    """
    from trainyard.training.weights.pretrained import load_with_weights

    return with_values_of_run(load_with_weights(path, overrides, run_directory).config, run_directory)


def is_config_of(directory: RunDirectory, recorded: Any, config: Config) -> bool:
    """Return whether the run of digest `recorded` has this configuration, but for `_AROUND_TRAINING`."""
    if recorded == config_sha256(config):
        return True
    run = _recorded_config(directory, recorded)
    return run is not None and _training_values(run) == _training_values(config)


def differences_from_run(
    directory: RunDirectory,
    config: Config,
    facts: Mapping[str, Any],
    *,
    data: str | None,
) -> tuple[str, ...]:
    """Return how the inputs of a start differ from those of the run in a directory, a text each.

    `facts` are those of the start for its `run.json`: command, commit, lock. `data` is the fingerprint of the
    data.
    """
    run = read_run(directory.run_file)
    before = inputs_of(run)
    now = replace(inputs_of(facts), data=data)
    if not is_config_of(directory, run.get("config_sha256"), config):
        recorded = _recorded_config(directory, run.get("config_sha256"))
        values = None if recorded is None else flat_values(_training_values(recorded))
        before = replace(before, configuration=values)
        now = replace(now, configuration=flat_values(_training_values(config)))
    return differences(before, now)


def _recorded_config(directory: RunDirectory, recorded: Any) -> Config | None:
    """Return the configuration of a run; None if its file is not the one on record."""
    with suppress(OSError, ConfigError, TypeError, ValueError):
        if values_sha256(read_settings(directory.config_file.read_bytes())) == recorded:
            return load_config(directory.config_file).config
    return None


def _training_values(config: Config) -> dict[str, Any]:
    """Return the values without the sections that only matter around a training, such as the store."""
    return {name: value for name, value in config.to_plain().items() if name not in _AROUND_TRAINING}


def has_changed_since(run_directory: Path, processes: int) -> bool:
    """Return whether the processes, the data or the newest checkpoint of a finished run have changed.

    Data that no text file makes are not compared.
    """
    from trainyard.training.data.tokenize_corpus import prepared_data_of

    directory = RunDirectory(run_directory)
    try:
        run = read_run(directory.run_file)
        config = load_config(directory.config_file).config
    except (TrainyardError, OSError):
        return False  # the folder of another machine than the first
    if run.get("hardware", {}).get("world_size", processes) != processes:
        return True
    newest = directory.checkpoint(int(run.get("outcome", {}).get("steps", 0)))
    if not is_complete(newest):
        return True
    is_text = config.recipe == "pretrain" and not config.data.hugging_face.dataset
    recorded = run.get("data", {}).get("fingerprint")
    return is_text and recorded is not None and prepared_data_of(directory.config_file)[0] != recorded


def with_values_of_run(config: Config, run_directory: Path | None) -> Config:
    """Return `config` with the commit of its dataset from the run in `run_directory`, which it resumes with.

    There may be a newer commit by now.
    """
    wanted = config.data.hugging_face
    file = RunDirectory(run_directory).config_file if run_directory else None
    if file is None or not file.is_file() or wanted.dataset is None or wanted.revision is not None:
        return config
    recorded = load_config(file).config.data.hugging_face
    return with_revision(config, recorded.revision) if recorded.dataset == wanted.dataset else config


def with_revision(config: Config, revision: str | None) -> Config:
    """Return `config` with the commit of its Hugging Face dataset set."""
    hugging_face = config.data.hugging_face.model_copy(update={"revision": revision})
    data = config.data.model_copy(update={"hugging_face": hugging_face})
    return config.model_copy(update={"data": data})
