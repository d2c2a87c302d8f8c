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
from dataclasses import dataclass, field

from trainyard.errors import ConfigError

_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)(?:\s+(.*))?$", re.DOTALL)
_HEREDOC = re.compile(r"(?<!<)<<(?!<)-?\s*[\"']?([A-Za-z_][A-Za-z0-9_]*)[\"']?")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:(:?[-+])([^}]*))?\})")
_FROM = re.compile(r"(?:--platform=\S+\s+)?(?P<image>\S+)(?:\s+[aA][sS]\s+(?P<name>\S+))?\s*$")
_WHEELS = re.compile(r"\.whl\b|\bwheel(?:s|house)?\b|/dist\b")
_KNOWN = {
    *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL"),
    *("MAINTAINER", "ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
}


BASE_FOLDER = "/<the folder of the base image>"
"""Stands for the working directory of a base image, which is unknown."""


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
    copied_from: tuple[Stage, ...] = ()
    """Images in a registry from which no stage starts, but which `COPY --from` or `RUN --mount` reads."""

    @property
    def bases(self) -> tuple[Stage, ...]:
        """The stages that start from a registry image, and the images that are only copied from."""
        own = (s for s in self.stages if not _stage_of(s.image, self.stages[: s.number]))
        return (*(stage for stage in own if stage.image != "scratch"), *self.copied_from)

    @property
    def unpinned(self) -> tuple[Stage, ...]:
        """The base images that are not pinned by a digest."""
        return tuple(stage for stage in self.bases if "@sha256:" not in stage.image)

    def ancestors(self, number: int) -> tuple[Stage, ...]:
        """Return the stages that a stage is built on, the first one first, and the stage itself."""
        found = [self.stages[number]]
        while (parent := _stage_of(found[0].image, self.stages[: found[0].number])) is not None:
            found.insert(0, parent)
        return tuple(found)

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
        found = [i for i in self.instructions if i.name == name and i.stage == len(self.stages) - 1]
        return found[-1] if found else None


def parse_dockerfile(text: str, name: str, given: Mapping[str, str] | None = None) -> Dockerfile:
    """Parse a Dockerfile, called `name` in messages; `given` are build arguments.

    Raises ConfigError for a line that is not an instruction, and for a file without FROM.
    """
    given = given or {}
    arguments, outer = dict[str, str](), dict[str, str]()
    stages, copied, instructions = list[Stage](), list[Stage](), list[Instruction]()
    # Arguments, variables and the working directory at the end of each stage.
    ends = list[tuple[dict[str, str], dict[str, str], str]]()
    for number, line in _logical_lines(text):
        match = _INSTRUCTION.match(line)
        word = match[1].upper() if match else ""
        if not match or word not in _KNOWN:
            raise ConfigError(
                f"{name}:{number}: {line.split()[0][:40]!r} is not an instruction of a Dockerfile"
            )
        rest = (match[2] or "").strip()
        if word == "FROM":
            image, stage_name = _from_image(rest, outer, f"{name}:{number}")
            parent = _stage_of(image, stages)
            stages.append(Stage(len(stages), stage_name, image, number))
            ends.append(ends[parent.number] if parent else ({}, {}, BASE_FOLDER))
        own, variables, folder = ends[-1] if stages else (outer, {}, "")
        known = own | variables
        filled = expand(rest, known)
        if word == "ARG":
            # An ARG before the first FROM is for FROM lines only; a stage has to declare it again.
            stated = arguments_of(rest, outer | known, given)
            own = own | {key: value for key, value in stated.items() if value is not None}
            arguments |= dict.fromkeys(stated.keys() - arguments, "")
            arguments |= {key: value for key, value in stated.items() if value is not None}
        elif word == "ENV":
            variables = variables | {key: expand(value, known) for key, value in pairs_of(rest).items()}
        elif word == "WORKDIR":
            folder = "" if "$" in filled else posixpath.normpath(posixpath.join(folder, filled.strip("\"'")))
        if stages:
            ends[-1] = (own, variables, folder)
        else:
            outer = own
        instruction = Instruction(word, rest, number, len(stages) - 1, filled, own | variables, folder)
        instructions.append(instruction)
        copied += _images_read(instruction, stages, outer | known)
    if not stages:
        raise ConfigError(f"{name}: no FROM, so this is not a Dockerfile")
    return Dockerfile(tuple(instructions), tuple(stages), arguments, tuple(copied))


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
    key, _, value = text.partition(" ")
    return {key: value.strip()} if value else {}


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
    match = _FROM.match(rest)
    if not match:
        raise ConfigError(f"{place}: FROM takes an image, then perhaps AS and a name; found {rest[:80]!r}")
    # A name that the variables leave empty is unknown: it stays as written.
    return expand(match["image"], values) or match["image"], (match["name"] or "").lower()


def _stage_of(name: str, stages: Sequence[Stage]) -> Stage | None:
    """Return the last of these stages that has this name; None if none has."""
    return next((s for s in reversed(stages) if s.name and s.name == name.lower()), None)


def is_stated(text: str) -> bool:
    """Return whether every variable of a text has a value."""
    return bool(text) and "$" not in text


def _images_read(
    instruction: Instruction, stages: Sequence[Stage], values: Mapping[str, str]
) -> Iterator[Stage]:
    """Yield the registry images that an instruction reads, without numbers and names of earlier stages."""
    earlier = {stage.name for stage in stages[:-1] if stage.name} | {"scratch"}
    for written in _origins_of(instruction):
        image = expand(written, values)
        if image and not image.isdecimal() and image.lower() not in earlier:
            yield Stage(instruction.stage, "", image, instruction.line)


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


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """First line and text of each instruction."""
    lines = text.removeprefix("\ufeff").splitlines()
    escape = "`" if re.match(r"\s*#\s*escape\s*=\s*`", lines[0] if lines else "") else "\\"
    found = []
    place = 0
    while place < len(lines):
        start, parts = place, list[str]()
        while place < len(lines):
            line = lines[place]
            place += 1
            if line.lstrip().startswith("#") or (parts and not line.strip()):
                if not parts:
                    break
                continue
            stripped = line.rstrip()
            parts.append(stripped.removesuffix(escape).strip())
            if not stripped.endswith(escape):
                break
        joined = " ".join(filter(None, parts))
        for end in _HEREDOC.findall(joined) if joined.upper().startswith(("RUN", "COPY", "ADD")) else ():
            while place < len(lines) and lines[place].strip() != end:
                joined += "\n" + lines[place]
                place += 1
            place += 1
        if joined:
            found.append((start + 1, joined))
    return found
