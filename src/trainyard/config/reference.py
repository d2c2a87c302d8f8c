"""Write the reference of every configuration key, `docs/configuration.md`, from the schema."""

import textwrap
from collections.abc import Iterator

from trainyard.config.json_schema import Fragment, fragment_of, value_fragments
from trainyard.config.problems import show_value
from trainyard.config.section import MOST

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
# A shorter description of a section says no more than its heading.
_TELLING_WORDS = 8
_TYPES = {"array": "list", "boolean": "bool", "integer": "int", "object": "mapping", "string": "text"}


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
        values = _values(fragment, default)
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


def _values(fragment: Fragment, default: str) -> str:
    """Return the values that a schema allows, such as `int>0`; empty where the default shows them."""
    choices = fragment.get("anyOf", [fragment])
    words = [_value(choice) for choice in choices if "null" not in default or choice.get("type") != "null"]
    hidden = not default or words[0] not in ("bool", *(["text"] if default == "=null" else []))
    return f", {' or '.join(words)}" if hidden else ""


def _value(fragment: Fragment) -> str:
    if "enum" in fragment:
        return f"`{'|'.join(map(str, fragment['enum']))}`"
    if "examples" in fragment:
        return f"text like {', '.join(f'`{example}`' for example in fragment['examples'])}"
    limits = (("exclusiveMinimum", ">"), ("minimum", "≥"), ("exclusiveMaximum", "<"), ("maximum", "≤"))
    found = [f"{sign}{fragment[name]:,}" for name, sign in limits if fragment.get(name, MOST) < MOST]
    return _TYPES.get(fragment["type"], str(fragment["type"])) + ",".join(found)
