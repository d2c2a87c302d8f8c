"""Write the reference of every configuration key, `docs/configuration.md`, from the schema."""

from collections.abc import Iterator

from trainyard.config.expectations import describe_expected, show_value
from trainyard.config.json_schema import fragment_of, value_fragments

_INTRODUCTION = """\
# Configuration

<!-- Written by tools/write_config_schema.py from src/trainyard/config/schema.py; edits here are lost. -->

`configs/training_configuration.yaml` is the one source of truth for a run. Other files extend it and say
only what differs:

```yaml
# yaml-language-server: $schema=training_configuration.schema.json
extends: training_configuration.yaml    # a path or a list of paths, relative to this file; later ones win

training:
  max_steps: 50
```

Mappings merge key by key; every other value replaces the one below it, and `null` does too. A single value
is changed on the command line with `--set training.max_steps=50`, which wins over all files. This command
prints the result, and the file and line of each value:

```
trainyard config show --config configs/smoke.yaml --explain
```

Files are read as YAML 1.2: `5e-5` is a number, `012` is twelve, and `yes`, `on` and `1:30` are text. Unknown
keys, duplicate keys, values of a wrong type or out of range, tabs, and combinations that cannot be trained
are errors. One message names all of them by file, line and key; the exit status is 2, and nothing is started.

A configuration holds no secrets; they come from the environment."""


def render_config_reference() -> str:
    """Return the complete document."""
    return "\n".join([_INTRODUCTION, *_sections()])


def _sections() -> Iterator[str]:
    section = None
    for key, fragment in value_fragments().items():
        if key.rpartition(".")[0] != section:
            section = key.rpartition(".")[0]
            yield from _heading(section)
        default = f"`{show_value(fragment['default'])}`" if "default" in fragment else "must be given"
        cells = (f"`{key}`", _code(describe_expected(fragment)), default, fragment.get("description", ""))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def _heading(section: str) -> Iterator[str]:
    if section:
        yield from ("", f"## {section}", "", fragment_of(section)["description"], "")
    else:
        yield from ("", "## Top-level keys", "")
    yield from ("| key | values | default | meaning |", "|---|---|---|---|")


def _code(words: str) -> str:
    return words.replace('"', "`")
