"""Whether processes can be started for a configuration: said once, and not by each of them."""

from trainyard.config.mesh import mesh_shape, require_strategy
from trainyard.config.schema import Config
from trainyard.errors import ConfigError


def require_processes(config: Config, processes: int) -> None:
    """Raise ConfigError when `processes` cannot train by `config` together."""
    if processes > 1 and config.recipe == "grpo":
        raise ConfigError(
            "recipe: grpo trains in one process, and several were started. Leave --nproc-per-node out. "
            "Nothing was started."
        )
    require_strategy(config.compute.strategy, processes)
    mesh_shape(config.compute, processes)
