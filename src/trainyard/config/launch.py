"""Check once, before processes are started, that they can train by a configuration."""

from trainyard.config.mesh import mesh_shape, require_strategy
from trainyard.config.schema import Config
from trainyard.errors import ConfigError


def require_processes(config: Config, processes: int) -> None:
    """Raise ConfigError when `processes` processes cannot train by `config`."""
    if processes > 1 and config.recipe == "grpo":
        raise ConfigError(
            "recipe: grpo trains in one process, and several were started. Leave --nproc-per-node out. "
            "Nothing was started."
        )
    require_strategy(config.compute.strategy, processes)
    mesh_shape(config.compute, processes)
