"""The HTML report: one self-contained file; its content security policy allows nothing but its own scripts.

    verdict, figures, proof, log of a failure, curves, the program's own cards, sample, checkpoints,
    provenance, events, configuration

Several runs share the charts, and have a table of their figures and of their differing settings. The
templates in `page/` escape all text that comes from a run. A section without known facts is left out.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.report.dashboard.charts import draw_chart, draw_panels, panel_groups, script_data
from trainyard.report.dashboard.run_comparison import compare_runs, run_labels
from trainyard.report.dashboard.text import utc
from trainyard.report.facts.config_changes import changes_from_defaults, config_changes, format_setting
from trainyard.report.facts.event_words import event_lines
from trainyard.report.facts.figures import figure_tiles
from trainyard.report.facts.history import AXES, finite_or_none
from trainyard.report.facts.log_tail import failure_log
from trainyard.report.facts.next_commands import restore_newest, run_links
from trainyard.report.facts.program_cards import program_cards
from trainyard.report.facts.quantities import (
    format_count,
    format_data_files,
    format_duration,
    format_loss,
    format_scaled,
)
from trainyard.report.facts.run_facts import RunFacts
from trainyard.report.facts.run_list import ListedEntry
from trainyard.report.facts.verdict_line import RunVerdict, run_headline
from trainyard.run.sizes import format_size
from trainyard.run.suggested_commands import is_command

if TYPE_CHECKING:
    from jinja2 import Environment

PAGE = Path(__file__).with_name("page")
_POLICY = ("default-src 'none'", "img-src data:", "style-src 'unsafe-inline'")
SCRIPTS = ("uPlot.iife.min.js", "report.js", "index.js")


def html_report(runs: Sequence[RunFacts], *, refresh_seconds: float | None = None) -> str:
    """The complete page; while a run is training, it reloads itself every `refresh_seconds`."""
    labels = run_labels(runs)
    panels = draw_panels(runs, labels)
    data = script_data(runs, panels)
    if refresh_seconds is not None and any(run.state.going for run in runs):
        data["refresh"] = refresh_seconds
    axes = [name for name in AXES if any(name in one["axes"] for one in data["runs"])]
    return _render(
        "report.html.j2",
        runs=runs,
        labels=labels,
        data=data,
        groups=panel_groups(panels),
        axes=["step", *axes],
        comparison=compare_runs(runs) if len(runs) > 1 else None,
    )


def html_index(
    place: str, entries: Sequence[ListedEntry], pages: Mapping[str, str], *, now: float, command: str
) -> str:
    """The page of all runs of a folder or a store, as they are at `now` (Unix seconds).

    `pages` has the address of a run's own page, where there is one; `command` is that which compares runs.
    """
    rows = [{**entry.to_json(), "page": pages.get(entry.run, "")} for entry in entries]
    fields = list(rows[0]) if rows else []
    data = {"fields": fields, "rows": [list(row.values()) for row in rows], "command": command}
    return _render("index.html.j2", place=place, entries=entries, data=data, now=now)


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(PAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    files = {
        name: (PAGE / name).read_text(encoding="utf-8") for name in (*SCRIPTS, "uPlot.min.css", "report.css")
    }
    environment.globals |= {
        "files": {name: Markup(text) for name, text in files.items()},  # noqa: S704
        "policy": lambda *names: "; ".join((*_POLICY, _allowed(files[name] for name in names))),
        "headline": run_headline,
        "tiles": figure_tiles,
        "events": event_lines,
        "provenance": lambda run: [(name, text, is_code) for name, text, is_code in _provenance(run) if text],
        "PROVEN": RunVerdict.PROVEN,
        "is_command": is_command,
        "chart": draw_chart,
        "cards": lambda run: program_cards(run.directory),
        "links": run_links,
        "failure_log": failure_log,
        "restore": restore_newest,
        "from_green": lambda run: config_changes(run.directory),
        "from_defaults": lambda run: changes_from_defaults(run.directory),
    }
    environment.filters |= {
        "utc": utc,
        "size": format_size,
        "count": format_count,
        "duration": format_duration,
        "loss": format_loss,
        "setting": format_setting,
        "markup": Markup,
    }
    return environment


def _allowed(scripts: Iterable[str]) -> str:
    """The part of the policy that allows these scripts, by their digests."""
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    return " ".join(["script-src", *(f"'sha256-{digest}'" for digest in digests)])


def _provenance(run: RunFacts) -> Iterable[tuple[str, str, bool]]:
    """The inputs of the run, by hash where there is one: name, text, and whether it is code."""
    git, data, hardware = run.section("git"), run.section("data"), run.machine
    if run.commit:
        difference = git.get("diff_sha256", "not on record")
        yield "commit", run.commit, True
        yield "tree", f"dirty, difference {difference}" if run.dirty else "clean", False
    yield "branch", _text(git.get("branch")), False
    yield "lock", _text(run.run.get("lock_sha256")), True
    yield "config", _text(run.run.get("config_sha256")), True
    yield "data", _data(data), False
    yield "data hash", _text(data.get("fingerprint")), True
    yield "seed", _text(run.run.get("seed")), False
    yield "image", _text(run.run.get("image_digest")), True
    yield "parent", _text(run.section("parent").get("checkpoint")), True
    parameters = finite_or_none(run.section("plan").get("parameters"))
    yield "parameters", "" if parameters is None else format_scaled(parameters), False
    yield "hardware", _join(hardware, ("device_name", "device", "platform", "host")), False
    yield "software", _software(hardware), False
    yield "workflow", _join(run.section("ci"), ("repository", "workflow", "run_id", "event", "actor")), False
    yield "weights", _text(run.weights_sha256), True


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _data(data: Mapping[str, Any]) -> str:
    tokens = finite_or_none(data.get("train_tokens"))
    parts = [
        _text(data.get("name")),
        format_data_files(data),
        f"{format_scaled(tokens)} tokens to train on" if tokens else "",
    ]
    return ", ".join(part for part in parts if part)


def _software(hardware: Mapping[str, Any]) -> str:
    names = {"python": "Python", "torch": "torch", "cuda": "CUDA", "driver": "driver", "threads": "threads"}
    return ", ".join(f"{label} {hardware[key]}" for key, label in names.items() if hardware.get(key))


def _join(section: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    return ", ".join(dict.fromkeys(str(section[key]) for key in keys if section.get(key)))
