"""A preset, the command that it makes for a run, and the user's own settings of its program.

    load_preset ──> Preset ──render──> PresetCommand: words, variables, files

A preset translates the configuration into a program's own names. The division of the model and the batches
are decided by `plan.parallel_degrees`, and nothing is computed here.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trainyard.config.registries import PRESETS
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.programs.program import CHECKPOINTS_FOLDER, FILES_FOLDER

if TYPE_CHECKING:
    from trainyard.plan.parallel_degrees import Degrees

Values = Mapping[str, Any]


@dataclass(frozen=True)
class PresetRun:
    """The run that a command is made for."""

    directory: str
    nodes: int
    degrees: "Degrees"
    settings: Mapping[str, str]
    """The user's own settings of the program."""

    @property
    def files(self) -> str:
        """The folder of the files that are written beside the program."""
        return f"{self.directory}/{FILES_FOLDER}"

    @property
    def checkpoints(self) -> str:
        """The folder of the program's own checkpoints."""
        return f"{self.directory}/{CHECKPOINTS_FOLDER}"


class Planned(NamedTuple):
    """The value of an option that the plan decides, and the key of the configuration to set instead."""

    value: Any
    key: str


@dataclass(frozen=True)
class PresetCommand:
    """A command as a preset makes it; `render_preset` adds the user's own settings."""

    words: tuple[str, ...]
    options: Values = field(default_factory=dict)
    """Options by the program's own names, in order; `Planned` if the plan decides it, None to omit it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Values = field(default_factory=dict)
    """Files beside the program by name: a text as it is, a mapping as JSON."""
    metrics: str = "auto"
    """As program.metrics, which replaces it."""
    data: tuple[str, ...] | None = None
    """As program.data, which replaces it; None: not known."""


@dataclass(frozen=True)
class Preset:
    """A program: how its command is made, and what its log and its checkpoints look like."""

    name: str
    command: Callable[[Config, PresetRun], PresetCommand]
    problems: Callable[[Config, PresetRun], Iterable[str]] = lambda _config, _run: ()
    """Yields what the program cannot do, with the key to change."""
    launcher: Literal["auto", "torchrun", "ray"] = "auto"
    """auto: torchrun starts several processes; torchrun: also one; ray: once, on the head of a cluster."""
    checkpoints: str = "*"
    """The pattern of its checkpoints in their folder."""
    resume: tuple[str, ...] = ()
    """Arguments that are added to resume; {checkpoint} becomes the path. Empty: it finds its own."""
    option: tuple[Literal["--", ""], Literal["=", " "]] = ("--", "=")
    """What precedes the name of an option, and its value. After a space, each word of a value is a word."""
    switches: bool = True
    """Whether an option with the value true is written without it, and one with false is left out."""
    settings_file: str | None = None
    """The file that the user's own settings change, by dotted names, instead of the options."""
    planned: Mapping[str, str] = field(default_factory=dict)
    """Other names of settings that the plan decides, with the key of the configuration to set instead."""
    required: Mapping[str, str] = field(default_factory=dict)
    """Keys of the configuration that must be set, with the meaning of each."""
    paths: Mapping[str, str] = field(default_factory=dict)
    """Keys that must be absolute paths in a job, if they are set, with the meaning of each."""
    uses: tuple[str, ...] = ()
    """Keys that most programs have no use for, and that this one has."""
    memory: Callable[[Config], Literal["megatron", "sharded"] | None] = lambda _config: None
    """How the program divides the model, which decides the least memory that it needs; None: not known."""
    only_data_parallel: bool = False
    """Whether the program ignores the degrees of parallelism in section compute."""
    defaults: Mapping[str, Values] = field(default_factory=dict)
    """Defaults of the configuration, in sections, for a configuration with this recipe."""


def load_preset(name: str) -> Preset:
    preset: Preset = PRESETS[name].preset()
    return preset


def render_preset(preset: Preset, config: Config, run: PresetRun) -> PresetCommand:
    """Return the command of a preset in `words`, and its files as texts."""
    made = preset.command(config, run)
    options, files = dict(made.options), dict(made.files)
    if preset.settings_file is None:
        words = {"true": True, "false": False} if preset.switches else {}
        options |= {name: words.get(text, text) for name, text in run.settings.items()}
    else:
        files[preset.settings_file] = _with_values(files[preset.settings_file], run.settings)
    texts = {
        name: content if isinstance(content, str) else json.dumps(content, indent=1) + "\n"
        for name, content in files.items()
    }
    return replace(made, words=(*made.words, *_option_words(preset, options)), options={}, files=texts)


def _option_words(preset: Preset, options: Values) -> Iterator[str]:
    dashes, joint = preset.option
    for name, given in options.items():
        value = given.value if isinstance(given, Planned) else given
        if value is None or (preset.switches and value is False):
            continue
        if preset.switches and value is True:
            yield f"{dashes}{name}"
        elif joint == " ":
            yield from (f"{dashes}{name}", *text_of(value).split())
        else:
            yield f"{dashes}{name}{joint}{text_of(value)}"


def _with_values(content: Values, settings: Mapping[str, str]) -> Values:
    """Return the content of a JSON file with settings put in by their dotted names."""
    changed: dict[str, Any] = json.loads(json.dumps(content))
    for dotted, text in settings.items():
        *path, last = dotted.split(".")
        section = changed
        for name in path:
            inner = section.get(name)
            section[name] = section = inner if isinstance(inner, dict) else {}
        section[last] = text
        with suppress(ValueError):
            section[last] = json.loads(text)
    return changed


def text_of(value: Any) -> str:
    """Return a value as a program reads it: a number in its shortest exact text, 1000 and not 1000.0."""
    if not isinstance(value, float):
        return str(value)
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


# The user's own settings of a program, by its own names. Those that the plan decides cannot be replaced;
# otherwise a job that was checked for one parallel layout would train with another.


def with_settings(config: Config, given: Iterable[str]) -> Config:
    """Return `config` with the settings of a command line (`KEY=VALUE`) after those of its files.

    Raises ConfigError for a recipe of this repository's trainer, which would ignore them.
    """
    if not (given := list(given)):
        return config
    if not config.is_program:
        raise ConfigError(
            f"--program-set {given[0][:80]}: recipe {config.recipe} runs no other program with settings; "
            "use --set, or name the program with --recipe. Nothing was sent."
        )
    lines = [*([config.program.settings] if config.program.settings else []), *given]
    program = config.program.model_copy(update={"settings": "\n".join(lines)})
    return config.model_copy(update={"program": program})


def own_settings(config: Config) -> dict[str, str]:
    """Return the program's own settings by name; for the same name the last one wins."""
    pairs = (line.partition("=") for line in _lines(config))
    return {name.strip(): value.strip() for name, _, value in pairs}


def planned_keys(preset: Preset, config: Config, run: PresetRun) -> dict[str, str]:
    """Return the names of all settings that the plan decides, with the key of the configuration for each."""
    options = preset.command(config, run).options.items()
    return {**preset.planned, **{name: value.key for name, value in options if isinstance(value, Planned)}}


def settings_problems(preset: Preset, config: Config, run: PresetRun) -> Iterator[str]:
    """Yield a message for each setting that is not KEY=VALUE, or that is planned."""
    for line in _lines(config):
        name, equals, _ = line.partition("=")
        if not equals or not name.strip() or any(letter.isspace() for letter in name.strip()):
            yield f"program.settings: {line[:80]!r} is not a KEY=VALUE"
    planned = {_plain(name): key for name, key in planned_keys(preset, config, run).items()}
    for name, value in run.settings.items():
        if key := planned.get(_plain(name)):
            yield f"program.settings: {name}={value[:80]} is decided by the plan; set {key} instead"


def _plain(name: str) -> str:
    """Return the name of a setting without Hydra's marks, and with `_` for `-`: programs accept either."""
    return name.lstrip("+~").replace("-", "_")


def _lines(config: Config) -> list[str]:
    text = config.program.settings or ""
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
