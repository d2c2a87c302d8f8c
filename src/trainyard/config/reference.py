"""Write the reference of every configuration key, `docs/configuration.md`, from the schema."""

import re
import textwrap
from collections.abc import Iterator

from trainyard.config.expectations import describe_expected, show_value
from trainyard.config.json_schema import fragment_of, value_fragments

_LINE_CHARACTERS = 110
_INTRODUCTION = """\
# Configuration

<!-- Written by tools/write_config_schema.py from src/trainyard/config/schema.py; edits here are lost. -->

`configs/training_configuration.yaml` has the keys of a run. Other files extend it and say only what differs:

```yaml
# yaml-language-server: $schema=training_configuration.schema.json
extends: training_configuration.yaml    # a path or a list of paths, relative to this file; later ones win

training:
  max_steps: 50
```

Mappings merge key by key; any other value, `null` too, replaces the one below it. `--set
training.max_steps=50` wins over all files. This prints each value with its file and line:

```
.venv/bin/trainyard config show --config configs/smoke.yaml --explain
```

Files are YAML 1.2: `5e-5` is a number, `yes` and `1:30` are text. Unknown and duplicate keys, wrong values
and combinations that cannot be trained are errors (exit code 2). Secrets come from the environment.

Each key has its default, then its other values; \\* must be given. A key whose default is `null` takes text
if nothing else is named."""
_TELLING_WORDS = 8
"""A shorter description of a section says no more than its heading."""
_SHORT = (
    (r"a mapping of names to texts", "mapping"),
    (r"a list of texts", "list"),
    (r"a number above ([\d.]+) and of at most ([\d,.]+)", r"number>\1,≤\2"),
    (r"a whole number above 0", "int>0"),
    (r"a whole number of at least ([\d,]+)", r"int≥\1"),
    (r"a whole number from ([\d,]+) to ([\d,]+)", r"int≥\1,≤\2"),
    (r"a number above ([\d.]+)", r"number>\1"),
    (r"a number of at least ([\d.]+) and below ([\d.]+)", r"number≥\1,<\2"),
    (r"a number of at least ([\d.]+)", r"number≥\1"),
    (r"a number from ([\d.]+) to ([\d.]+)", r"number≥\1,≤\2"),
    (r"true or false", "bool"),
)


def render_config_reference() -> str:
    """Return the complete document."""
    return "\n".join([_INTRODUCTION, *_sections()])


def _sections() -> Iterator[str]:
    section = None
    for key, fragment in value_fragments().items():
        if key.rpartition(".")[0] != section:
            section = key.rpartition(".")[0]
            yield from _heading(section)
        default = f"={show_value(fragment['default'])}" if "default" in fragment else ""
        if fragment.get("type") == "object":  # a mapping of names, which may be empty
            default = "={}"
        needed = "" if default else "\\*"
        values = _short(_code(describe_expected(fragment)), default)
        text = f"- `{key}{default}`{needed}{values}: {fragment.get('description', '')}"
        yield textwrap.fill(
            text, _LINE_CHARACTERS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    yield ""


def _heading(section: str) -> Iterator[str]:
    yield from ("", f"## {section or 'Top-level keys'}", "")
    description = fragment_of(section)["description"] if section else ""
    if len(description.split()) >= _TELLING_WORDS:
        yield from (description, "")


def _short(words: str, default: str) -> str:
    for long, short in _SHORT:
        words = re.sub(long, short, words)
    if "null" in default:
        words = words.removesuffix(" or null")
    if default and (words == "bool" or (words == "text" and default.endswith("=null"))):
        return ""
    choices = re.findall(r"`([\w-]+)`", words)
    if re.fullmatch(r"(`[\w-]+`(, | or )?)+", words):
        words = f"`{'|'.join(choices)}`"
    return f", {words}"


def _code(words: str) -> str:
    return words.replace('"', "`")
