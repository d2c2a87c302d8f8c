"""Whether processes can be started for a configuration: said once, and not by each of them."""

from collections.abc import Sequence
from pathlib import Path

from trainyard.config.load import load_config
from trainyard.config.mesh import mesh_shape, require_strategy
from trainyard.config.schema import Config
from trainyard.errors import ConfigError


def require_launchable(file: Path, overrides: Sequence[str], processes: int) -> None:
    """Raise ConfigError when the configuration has mistakes, or `processes` cannot train by it together."""
    require_processes(load_config(file, overrides).config, processes)


def require_processes(config: Config, processes: int) -> None:
    """Raise ConfigError when `processes` cannot train by `config` together."""
    if processes > 1 and config.recipe == "grpo":
        raise ConfigError(
            "recipe: grpo trains in one process, and several were started. Leave --nproc-per-node out. "
            "Nothing was started."
        )
    require_strategy(config.compute.strategy, processes)
    mesh_shape(config.compute, processes)
