"""A preset of a program, `configs/programs/NAME.yaml`: read it, and render its command from a configuration.

    NAME.yaml ──load_preset──> Preset ──render_preset──> command, variables, files

Texts of a preset are templates: `{expression}` becomes a value. A text that is one expression alone keeps the
value's type, which JSON files need; `{{` is a brace. An expression has the operators of Python without
calls of methods, the keys of the configuration (`model.architecture.num_layers`), and

    parallel.world, nodes, processes (per node), tensor, pipeline, context, expert, data (replicas)
    batch.micro, global, accumulation (sequences per forward pass, per step; forward passes per step)
    run.name, directory, checkpoints, files, tensorboard, steps
    none, absent (leaves an option or a key of a file out)
    max, min, round, dict, json(x), number(text) or 0, short(number), before(text, mark), after(text, mark),
    ends(text, end), setting(name): the user's own setting of the program, or none

Which numbers `parallel` and `batch` are is decided by `plan.parallel_degrees`; nothing is computed here.
"""

import ast
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from trainyard.config.kind import RunKind
from trainyard.config.registries import PRESETS
from trainyard.config.schema import Config
from trainyard.config.section import Name, Section, Words
from trainyard.errors import ConfigError
from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat
from trainyard.programs.metrics.log_reader import FORMS

Values = Mapping[str, Any]
"""The names that expressions may use, in sections."""
ABSENT = object()
"""The value of `absent`."""
_HOLE = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")
_OPERATORS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, all_of_them: one in all_of_them,
    ast.NotIn: lambda one, all_of_them: one not in all_of_them,
}


class PresetCheck(Section):
    """A rule that the values of the command must satisfy."""

    when: Name
    """The expression that is true when there is a problem."""
    problem: Name
    """The problem, with the key to change."""


class Preset(Section):
    """A program: its command as a template, and what its log and its checkpoints look like."""

    name: Name
    meaning: Name
    """The program in a few words, for the reference of the configuration."""
    command: Words
    """The program and its first arguments, without its options."""
    launcher: Literal["auto", "torchrun", "ray"] = "auto"
    """auto: torchrun starts several processes; torchrun: also one; ray: once, on the head of a cluster."""
    log: Name | None = None
    """The form of its log (`programs.metrics.log_reader`), if it logs every monitoring.log_steps steps. Then
    a job requires each of these rows. null: the program decides what it logs."""
    rows: Literal["first-node", "any-node"] = "first-node"
    """Whose rows count; any-node: exactly one process, on any node, prints them."""
    checkpoints: Name = "{run.checkpoints}/*"
    formats: tuple[Annotated[CheckpointFormat, Field(strict=False)], ...] = Field((), strict=False)
    """The formats that its checkpoints can have; none: any."""
    metrics: Name = "auto"
    """Where its metrics are, for a preset without `log`; program.metrics replaces it."""
    resume: Words = ()
    """Arguments that are added to resume; {checkpoint} becomes the path. Empty: it finds its own."""
    lock: Name = "requirements-training.txt"
    """The lock of its image, a file of this repository; for a preset with `log`."""
    environment: dict[str, Any] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)
    """Its options by its own names; program.settings replace them."""
    option: Name = "--{name}={value}"
    """How an option is written. If a space precedes the value, a value of several words becomes several."""
    switches: bool = True
    """Whether an option with the value true is written without it, and one with false is left out."""
    files: dict[str, Any] = Field(default_factory=dict)
    """Files beside the program: a text as it is, a mapping as JSON."""
    settings: Literal["options", "none"] = "options"
    """none: program.settings are refused."""
    settings_file: Name | None = None
    """The file of `files` that program.settings change, by dotted names, instead of the options."""
    setting_names: Name = r"\S+"
    """The regular expression of the name of a setting."""
    refused_settings: dict[str, str] = Field(default_factory=dict)
    """Names of settings that the program lacks but people try, with the reason."""
    planned: dict[str, str] = Field(default_factory=dict)
    """Names of settings that the plan decides, with the key of the configuration to set instead."""
    required: dict[str, str] = Field(default_factory=dict)
    """Keys of the configuration that must be set, with the meaning of each."""
    paths: dict[str, str] = Field(default_factory=dict)
    """Keys that must be absolute paths in a job, if they are set, with the meaning of each."""
    checks: tuple[PresetCheck, ...] = Field((), strict=False)
    memory: Name | None = None
    """How the program divides the model: megatron, sharded or none. It decides the least memory that the
    program needs."""
    only_data_parallel: bool = False
    """Whether the program ignores the degrees of parallelism in section compute."""
    defaults: dict[str, Any] = Field(default_factory=dict)
    """Defaults of the configuration, in sections, for a configuration with this recipe."""

    def uses(self, *keys: str) -> bool:
        """Return whether a template has one of these names."""
        texts = json.dumps([self.command, self.options, self.files, self.environment])
        return any(re.search(rf"\b{re.escape(key)}\b", texts) for key in keys)


@dataclass(frozen=True)
class RenderedProgram:
    """A command, with its environment, files and patterns."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[str, str]
    """Text by name, for the folder `run.files`."""
    checkpoints: str
    """The pattern of its checkpoints."""
    metrics: str
    """As program.metrics."""


def load_preset(name: str) -> Preset:
    """Return the preset of a recipe. Raises ConfigError for a file that is no preset."""
    path, values = PRESETS.path(name), PRESETS.read(name)
    try:
        preset = Preset.model_validate({**values, "name": name})
    except ValidationError as error:
        lines = (f"{path}: {'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigError("\n".join(lines)) from None
    if preset.log is not None and preset.log not in FORMS:
        raise ConfigError(f"{path}: log: {preset.log} is no form of a log; use one of {', '.join(FORMS)}")
    return preset


def preset_values(config: Config, derived: Mapping[str, Mapping[str, Any]]) -> Values:
    """Return the names for the templates: the configuration, and the sections `derived`."""
    given = own_settings(config)
    return {
        **config.to_plain(),
        **derived,
        "none": None,
        "absent": ABSENT,
        "max": max,
        "min": min,
        "round": round,
        "dict": dict,
        "json": json.dumps,
        "number": _number,
        "short": lambda value: f"{value:g}",
        "before": lambda text, mark: str(text).partition(mark)[0],
        "after": lambda text, mark: str(text).partition(mark)[2],
        "ends": lambda text, end: str(text).endswith(end),
        "setting": given.get,
    }


def render_preset(preset: Preset, config: Config, values: Values) -> RenderedProgram:
    """Return the command of a preset, for values without problems."""
    given, options, files = own_settings(config), dict(preset.options), dict(preset.files)
    if preset.settings_file is None:
        options |= {name: _setting(text, switches=preset.switches) for name, text in given.items()}
    filled = {name: fill(content, values) for name, content in files.items() if not isinstance(content, str)}
    if preset.settings_file is not None:
        for name, text in given.items():
            _put(filled[preset.settings_file], name.split("."), _json_value(text))
    words = [_text(fill(word, values)) for word in preset.command]
    return RenderedProgram(
        command=(*words, *_option_words(preset, fill(options, values, raw=given.keys()))),
        environment={name: _text(fill(value, values)) for name, value in preset.environment.items()},
        files={
            name: json.dumps(filled[name], indent=1) + "\n" if name in filled else str(content)
            for name, content in files.items()
        },
        checkpoints=_text(fill(preset.checkpoints, values)),
        metrics=_text(fill(preset.metrics, values)),
    )


def _setting(text: str, *, switches: bool) -> str | bool:
    return {"true": True, "false": False}.get(text, text) if switches else text


def _option_words(preset: Preset, options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if value is None or (preset.switches and value is False):
            continue
        if preset.switches and value is True:
            yield preset.option.replace("{name}", name).partition("{value}")[0].rstrip(" =")
            continue
        first, space, rest = preset.option.replace("{name}", name).partition(" ")
        if space:
            yield first
            yield from rest.replace("{value}", _text(value)).split()
        else:
            yield first.replace("{value}", _text(value))


def fill(template: Any, values: Values, *, raw: Sequence[str] | Any = ()) -> Any:
    """Return a template with its expressions evaluated; keys named `raw` keep their texts.

    Raises ConfigError for an expression that cannot be evaluated.
    """
    if isinstance(template, dict):
        found = {name: part if name in raw else fill(part, values) for name, part in template.items()}
        return {name: part for name, part in found.items() if part is not ABSENT}
    if isinstance(template, list | tuple):
        return [fill(part, values) for part in template]
    if not isinstance(template, str):
        return template
    if (alone := _HOLE.fullmatch(template)) and alone[1]:
        return evaluate(alone[1], values)
    return _HOLE.sub(lambda hole: _text(evaluate(hole[1], values)) if hole[1] else hole[0][0], template)


def evaluate(text: str, values: Values) -> Any:
    """Return the value of an expression. Raises ConfigError for one that is wrong or has unknown names."""
    try:
        text = text.strip().replace("batch.global", "batch.global_")  # a keyword of Python
        return _evaluate(ast.parse(text, mode="eval").body, values)
    except (SyntaxError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise ConfigError(f"a preset's expression {{{text}}} has no value: {error!r}") from None


def _evaluate(node: ast.expr, values: Values) -> Any:
    """Return the value of a part of an expression; nothing else of Python is allowed."""

    def of(part: ast.expr) -> Any:
        return _evaluate(part, values)

    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return values[name]
        case ast.Attribute(section, name):
            return of(section)[name]
        case ast.IfExp(test, then, otherwise):
            return of(then) if of(test) else of(otherwise)
        case ast.BoolOp(how, parts):
            for part in parts[:-1]:
                if bool(found := of(part)) is isinstance(how, ast.Or):
                    return found
            return of(parts[-1])
        case ast.UnaryOp(how, part):
            return _OPERATORS[type(how)](of(part))
        case ast.BinOp(left, how, right):
            return _OPERATORS[type(how)](of(left), of(right))
        case ast.Compare(left, [how], [right]):
            return _OPERATORS[type(how)](of(left), of(right))
        case ast.List(parts) | ast.Tuple(parts):
            return [of(part) for part in parts]
        case ast.Call(ast.Name(name), parts, named):
            return values[name](*map(of, parts), **{str(each.arg): of(each.value) for each in named})
    raise ValueError(f"{ast.unparse(node)} is not allowed here")


def _text(value: Any) -> str:
    """Return a value as a program reads it."""
    return format_number(value) if isinstance(value, float) else str(value)


def format_number(value: float) -> str:
    """Return the shortest text that reads back as exactly this number; whole numbers have no point."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def _number(text: str | None) -> int:
    """Return a whole number that is given as a text; 0 for anything else."""
    digits = (text or "").replace(",", "").strip()
    return int(digits) if digits.isdecimal() and len(digits) < 16 else 0


def _json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _put(section: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = section.get(name)
        section[name] = inner if isinstance(inner, dict) else {}
        section = section[name]
    section[path[-1]] = value


# The user's own settings of a program, by its own names. Those that the plan decides cannot be replaced;
# otherwise a job that was checked for one parallel layout would train with another.


def with_settings(config: Config, given: Sequence[str]) -> Config:
    """Return `config` with the settings of a command line (`KEY=VALUE`) after those of its files.

    Raises ConfigError for a recipe of this repository's trainer, which would ignore them.
    """
    if not given:
        return config
    if config.kind is RunKind.TRAINER:
        raise ConfigError(
            f"--program-set {given[0][:80]}: recipe {config.recipe} runs no other program with settings; "
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


def settings_problems(preset: Preset, config: Config) -> Iterator[str]:
    """Yield a message for each setting that is not KEY=VALUE, that the program lacks, or that is planned."""
    if preset.settings == "none" and own_settings(config):
        yield f"program.settings: recipe {preset.name} takes none; use another program, or recipe command"
        return
    for line in _lines(config):
        name, equals, _ = line.partition("=")
        if not equals or not name.strip() or any(letter.isspace() for letter in name.strip()):
            yield f"program.settings: {line[:80]!r} is not a KEY=VALUE"
    planned = {_plain(name): key for name, key in preset.planned.items()}
    for name, value in own_settings(config).items():
        if key := planned.get(_plain(name)):
            yield f"program.settings: {name}={value[:80]} is decided by the plan; set {key} instead"
        elif reason := preset.refused_settings.get(name.lstrip("+~")):
            yield f"program.settings: {name}: {reason}"
        elif name and not re.fullmatch(preset.setting_names, name):
            yield f"program.settings: {name[:80]!r} is not the name of a setting of {preset.name}"


def _plain(name: str) -> str:
    """Return the name of a setting without Hydra's marks, and with `_` for `-`: programs accept either."""
    return name.lstrip("+~").replace("-", "_")


def _lines(config: Config) -> list[str]:
    text = config.program.settings or ""
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
