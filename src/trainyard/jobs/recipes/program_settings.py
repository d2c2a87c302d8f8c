"""Settings of another program by its own names: read from the configuration, merged over the recipe's values.

A recipe renders `name -> value` from the one configuration. `program.settings` and `--program-set` add to
these values or replace them. Values that the plan decides cannot be replaced; otherwise a job that was
checked for one parallel layout would train with another.
"""

from collections.abc import Iterator, Mapping, Sequence

from trainyard.config.registries import RECIPES
from trainyard.config.schema import Config
from trainyard.errors import ConfigError

Settings = Mapping[str, str]


def format_number(value: float) -> str:
    """Return the shortest text that reads back as exactly this number; whole numbers have no point."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def with_settings(config: Config, given: Sequence[str]) -> Config:
    """Return `config` with the settings of a command line (`KEY=VALUE`) after those of its files.

    Raises ConfigError for settings that the trainer of this repository would ignore.
    """
    if not given:
        return config
    if config.recipe in RECIPES:
        raise ConfigError(
            f"--program-set {given[0][:80]}: recipe {config.recipe} has no settings of another program; "
            "use --set, or name the program with --recipe. Nothing was sent."
        )
    lines = [*([config.program.settings] if config.program.settings else []), *given]
    program = config.program.model_copy(update={"settings": "\n".join(lines)})
    return config.model_copy(update={"program": program})


def own_settings(config: Config) -> dict[str, str]:
    """Return the program's own settings by name; for the same name the last one wins."""
    found = {}
    for line in _lines(config):
        name, _, value = line.partition("=")
        found[name.strip()] = value.strip()
    return found


def settings_problems(config: Config, planned: Mapping[str, str]) -> Iterator[str]:
    """Yield the settings that have no `KEY=VALUE`, or that contradict the plan.

    `planned` has the names that the plan decides, with the key of the configuration to set instead.
    """
    for line in _lines(config):
        name, equals, _ = line.partition("=")
        if not equals or not name.strip() or any(letter.isspace() for letter in name.strip()):
            yield f"program.settings: {line[:80]!r} is not a KEY=VALUE"
    for name, value in own_settings(config).items():
        if key := planned.get(name):
            yield f"program.settings: {name}={value[:80]} is decided by the plan; set {key} instead"


def _lines(config: Config) -> list[str]:
    text = config.program.settings or ""
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
