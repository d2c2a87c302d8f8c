"""The instructions of a Dockerfile with their variables filled in, as ARG and ENV set them in each stage.

A variable without a value stays as written: the version in `torch==${TORCH}` is unknown.
"""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

from trainyard.image.context.dockerfile import Dockerfile, Instruction, arguments_of, expand, pairs_of

BASE_FOLDER = "/<the folder of the base image>"
"""Stands for the working directory of a base image, which is unknown."""


@dataclass(frozen=True)
class ResolvedInstruction:
    """An instruction, and what is known at its place."""

    instruction: Instruction
    text: str
    """Its text with its variables filled in."""
    values: Mapping[str, str]
    """The variables after it."""
    folder: str
    """The working directory; empty if unknown."""


def resolve_text(parsed: Dockerfile) -> tuple[ResolvedInstruction, ...]:
    """Return the instructions of all stages with their variables filled in."""
    outer: dict[str, str] = {}
    ends: dict[int, tuple[dict[str, str], dict[str, str], str]] = {}
    found = []
    for instruction in parsed.instructions:
        number = instruction.stage
        if instruction.name == "FROM":
            parent = parsed.stage_of(parsed.stages[number].image, number)
            ends[number] = ends[parent.number] if parent else ({}, {}, BASE_FOLDER)
        arguments, variables, folder = ends.get(number, ({}, {}, ""))
        known = {**arguments, **variables} if number >= 0 else outer
        text = expand(instruction.text, known)
        if instruction.name == "ARG":
            # An ARG before the first FROM is for FROM lines only; a stage has to declare it again.
            stated = arguments_of(instruction.text, {**outer, **known}, parsed.given)
            arguments = {**arguments, **{key: value for key, value in stated.items() if value is not None}}
        elif instruction.name == "ENV":
            set_here = {key: expand(value, known) for key, value in pairs_of(instruction).items()}
            variables = {**variables, **set_here}
        elif instruction.name == "WORKDIR":
            folder = "" if "$" in text else posixpath.normpath(posixpath.join(folder, text.strip("\"'")))
        if number < 0:
            outer = {**outer, **arguments}
        else:
            ends[number] = (arguments, variables, folder)
        found.append(ResolvedInstruction(instruction, text, {**arguments, **variables}, folder))
    return tuple(found)
