"""Parse a Dockerfile: its instructions with their lines, its stages, its arguments and its base images.

It handles what the checks need: continued lines, comments, here-documents, the escape directive, and
variables of ARG and ENV. It builds nothing, and treats the command of a RUN as text.
"""

import contextlib
import itertools
import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trainyard.errors import ConfigError
from trainyard.image.version_facts import fact

_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)(?:\s+(.*))?$", re.DOTALL)
_HEREDOC = re.compile(r"(?<!<)<<(?!<)-?\s*[\"']?([A-Za-z_][A-Za-z0-9_.-]*)[\"']?")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:(:?[-+])([^}]*))?\})")
_FROM = re.compile(r"(?:--platform=\S+\s+)?(?P<image>\S+)(?:\s+[aA][sS]\s+(?P<name>\S+))?\s*$")
_WHEELS = re.compile(r"\.whl\b|\bwheel(?:s|house)?\b|/dist\b")
# The working directory of a base image is unknown.
_BASE_FOLDER = "/<the folder of the base image>"


@dataclass(frozen=True)
class Instruction:
    """One instruction, and what is known at its place."""

    name: str
    """In capital letters."""
    text: str
    """The rest of the instruction: continued lines joined by a space, variables not filled in."""
    line: int
    """The line of its first word, counted from 1."""
    stage: int
    """The stage it is in, counted from 0; -1 before the first FROM."""
    filled: str
    """`text` with its variables filled in."""
    values: Mapping[str, str]
    """The variables after it."""
    folder: str
    """The working directory after it; empty if unknown."""


@dataclass(frozen=True)
class Stage:
    """One FROM and the instructions after it."""

    number: int
    name: str
    image: str
    """The start of the stage, variables filled in: an image, `scratch`, or the name of an earlier stage."""
    line: int


@dataclass(frozen=True)
class Copy:
    """A COPY, an ADD or a mount of a RUN, as written."""

    sources: tuple[str, ...]
    """Empty if they are no files of a stage, an image or the build context."""
    target: str
    origin: str
    """The stage or image that it reads; empty is the build context."""


@dataclass(frozen=True)
class Dockerfile:
    """A complete file."""

    instructions: tuple[Instruction, ...]
    stages: tuple[Stage, ...]
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Every ARG of the file with its default, or with the given value; empty if it has neither."""

    @property
    def bases(self) -> tuple[Stage, ...]:
        """The stages that start from a registry image, and the images that COPY or a mount reads."""
        found = [stage for stage in self.stages if not _stage_of(stage.image, self.stages[: stage.number])]
        known = {name: value for name, value in self.arguments.items() if value}
        for line in self.instructions:
            earlier = self.stages[: max(line.stage, 0)]
            images = filter(None, (expand(one, {**known, **line.values}) for one in _origins_of(line)))
            read = (one for one in images if not one.isdecimal() and not _stage_of(one, earlier))
            found += (Stage(line.stage, "", image, line.line) for image in read)
        return tuple(stage for stage in found if stage.image.lower() != "scratch")

    @property
    def unpinned(self) -> tuple[Stage, ...]:
        """The base images that are not pinned by a digest."""
        return tuple(stage for stage in self.bases if "@sha256:" not in stage.image)

    def until(self, target: str) -> "Dockerfile":
        """Return the file up to the stage that is called `target`, or all of it for an empty name."""
        stage = _stage_of(target, self.stages) if target else self.stages[-1]
        if stage is None:
            names = ", ".join(stage.name for stage in self.stages if stage.name) or "none has a name"
            raise ConfigError(f"--target {target}: the Dockerfile has no such stage ({names})")
        lines = tuple(line for line in self.instructions if line.stage <= stage.number)
        return replace(self, instructions=lines, stages=self.stages[: stage.number + 1])

    def ancestors(self, number: int) -> tuple[Stage, ...]:
        """Return the stages that a stage is built on, the first one first, and the stage itself."""
        found = [self.stages[number]]
        while (parent := _stage_of(found[0].image, self.stages[: found[0].number])) is not None:
            found.insert(0, parent)
        return tuple(found)

    def lineage(self, number: int) -> tuple[Instruction, ...]:
        """Return the instructions of a stage and of those that it is built on, in the order of the file."""
        numbers = {stage.number for stage in self.ancestors(number)}
        return tuple(line for line in self.instructions if line.stage in numbers)

    def used_stages(self) -> tuple[Stage, ...]:
        """Return the stages that the last one is built on, or copies more than wheels from, in order."""
        # Only an earlier stage can be a source; wheels of a stage are not its environment.
        used = {len(self.stages) - 1}
        for number in range(len(self.stages) - 1, -1, -1):
            if number not in used:
                continue
            used |= {stage.number for stage in self.ancestors(number)}
            reads = [i for i in self.instructions if i.stage == number and i.name in ("COPY", "ADD", "RUN")]
            for source in (s for one in reads if not _WHEELS.search(one.text) for s in _origins_of(one)):
                stage = _stage_of(source, self.stages[:number])
                if stage or (source.isdecimal() and int(source) < number):
                    used.add(stage.number if stage else int(source))
        return tuple(stage for stage in self.stages if stage.number in used)

    def last(self, name: str) -> Instruction | None:
        """Return the last instruction of this name in the last stage."""
        own = (line for line in reversed(self.instructions) if line.stage == len(self.stages) - 1)
        return next((line for line in own if line.name == name), None)


def parse_dockerfile(text: str, name: str, given: Mapping[str, str] | None = None) -> Dockerfile:
    """Parse a Dockerfile, called `name` in messages; `given` are build arguments.

    Raises ConfigError for a line that is not an instruction, and for a file without FROM.
    """
    given = given or {}
    arguments = dict[str, str]()
    stages, instructions = list[Stage](), list[Instruction]()
    # Arguments, variables and the working directory before the first FROM, and at the end of each stage.
    ends: list[tuple[dict[str, str], dict[str, str], str]] = [({}, {}, "")]
    for number, line in _logical_lines(text):
        match = _INSTRUCTION.match(line)
        word = match[1].upper() if match else ""
        if not match or word not in fact("commands", "instructions"):
            raise ConfigError(
                f"{name}:{number}: {line.split()[0][:40]!r} is not an instruction of a Dockerfile"
            )
        rest = (match[2] or "").strip()
        if word == "FROM":
            image, stage_name = _from_image(rest, ends[0][0], f"{name}:{number}")
            parent = _stage_of(image, stages)
            stages.append(Stage(len(stages), stage_name, image, number))
            ends.append(ends[parent.number + 1] if parent else ({}, {}, _BASE_FOLDER))
        own, variables, folder = ends[-1]
        known = own | variables
        filled = expand(rest, known)
        if word == "ARG":
            # An ARG before the first FROM is for FROM lines only; a stage has to declare it again.
            stated = arguments_of(rest, ends[0][0] | known, given)
            own = own | {key: value for key, value in stated.items() if value is not None}
            for key, value in stated.items():
                arguments[key] = arguments.get(key, "") if value is None else value
        elif word == "ENV":
            variables = variables | {key: expand(value, known) for key, value in pairs_of(rest).items()}
        elif word == "WORKDIR":
            folder = "" if "$" in filled else posixpath.normpath(posixpath.join(folder, filled.strip("\"'")))
        ends[-1] = (own, variables, folder)
        instructions.append(Instruction(word, rest, number, len(stages) - 1, filled, own | variables, folder))
    if not stages:
        raise ConfigError(f"{name}: no FROM, so this is not a Dockerfile")
    return Dockerfile(tuple(instructions), tuple(stages), arguments)


def arguments_of(text: str, known: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str | None]:
    """Return the arguments that an ARG declares, each with its value; None where nothing states one.

    Without a default an argument keeps the value of an earlier ARG, which `known` holds.
    """
    found: dict[str, str | None] = {}
    for key, equals, value in (word.partition("=") for word in _words(text)):
        default = expand(value, known) if equals else known.get(key)
        found[key] = given.get(key, default)
    return found


def pairs_of(text: str) -> dict[str, str]:
    """Return the variables that the text of an ENV or LABEL sets."""
    words = _words(text)
    if words and "=" in words[0]:
        return dict(word.partition("=")[::2] for word in words if "=" in word)
    written = text.split(None, 1)
    return {written[0]: written[1]} if len(written) > 1 else {}


def _words(text: str) -> list[str]:
    """Return the words of an instruction without their quotes; with an open quote as they are written."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def expand(text: str, values: Mapping[str, str]) -> str:
    """`text` with its variables filled in; a variable without a value stays as written."""

    def value_of(match: re.Match[str]) -> str:
        key = match[1] or match[2]
        known = values.get(key)
        if match[3] in ("-", ":-"):
            return known or match[4]
        if match[3] in ("+", ":+"):
            return match[4] if known else ""
        return match[0] if known is None else known

    return _VARIABLE.sub(value_of, text)


def _from_image(rest: str, values: Mapping[str, str], place: str) -> tuple[str, str]:
    """Return the image of a FROM, with its variables filled in, and the name of the stage."""
    if not (match := _FROM.match(rest)):
        raise ConfigError(f"{place}: FROM takes an image, then perhaps AS and a name; found {rest[:80]!r}")
    # A name that the variables leave empty is unknown: it stays as written.
    return expand(match["image"], values) or match["image"], (match["name"] or "").lower()


def _stage_of(name: str, stages: Sequence[Stage]) -> Stage | None:
    """Return the last of these stages that has this name; None if none has."""
    return next((s for s in reversed(stages) if s.name and s.name == name.lower()), None)


def is_stated(text: str) -> bool:
    """Return whether every variable of a text has a value."""
    return bool(text) and "$" not in text


def _origins_of(instruction: Instruction) -> list[str]:
    """Return the stages and images that a COPY, an ADD or the mounts of a RUN read, as written."""
    name, text = instruction.name, instruction.text
    if name == "ONBUILD":
        name, _, text = text.partition(" ")
    return [copy.origin for copy in copies_of(name.upper(), text) if copy.origin]


def copies_of(name: str, text: str) -> Iterator[Copy]:
    """Yield what an instruction with this name and text copies or mounts."""
    words = _words(text)
    flags = list(itertools.takewhile(lambda word: word.startswith("--"), words))
    options = [(option, value) for option, _, value in (flag.partition("=") for flag in flags)]
    if name == "RUN":
        for mount in (value for option, value in options if option == "--mount"):
            facts = dict(part.partition("=")[::2] for part in mount.split(","))
            target = facts.get("target") or facts.get("dst") or facts.get("destination") or ""
            is_file = facts.get("type", "bind") == "bind"
            sources = (facts.get("source") or facts.get("src") or ".",) if is_file else ()
            yield Copy(sources, target, facts.get("from", ""))
    elif name in ("COPY", "ADD"):
        paths = words[len(flags) :]
        if listed := re.search(r"\[.*\]\s*$", text):
            with contextlib.suppress(ValueError):  # a name with a bracket is no list
                paths = [str(path) for path in json.loads(listed[0])]
        # A here-document has no file, and `--parents` puts files elsewhere.
        if len(paths) < 2 or "<<" in text or "--parents" in flags:
            paths = [""]
        yield Copy(tuple(paths[:-1]), paths[-1], dict(options).get("--from", ""))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each instruction."""
    lines = text.removeprefix("\ufeff").splitlines()
    escape = "`" if re.match(r"\s*#\s*escape\s*=\s*`", lines[0] if lines else "") else "\\"
    numbered = enumerate(lines, start=1)
    start, parts = 0, list[str]()
    for number, line in numbered:
        if line.lstrip().startswith("#") or not line.strip():
            continue
        start, stripped = start or number, line.rstrip()
        parts.append(stripped.removesuffix(escape).strip())
        if stripped.endswith(escape):
            continue
        joined = " ".join(filter(None, parts))
        for end in _HEREDOC.findall(joined) if joined.upper().startswith(("RUN", "COPY", "ADD")) else ():
            if end in map(str.strip, lines[number:]):  # else it is `1<<SHIFT`, or in quotes
                while (more := next(numbered, (0, end))[1]).strip() != end:
                    joined += f"\n{more}"
        if joined:
            yield start, joined
        start, parts = 0, []
    if left := " ".join(filter(None, parts)):
        yield start, left  # the file ends in a continued line
