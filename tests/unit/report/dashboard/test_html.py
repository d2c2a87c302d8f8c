"""The HTML report: well formed, self-contained, escaped, with every section that has known facts."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from trainyard.report.dashboard.charts import HEIGHT, WIDTH, Chart, DrawnPanel, Panel, Series, draw_chart
from trainyard.report.dashboard.dashboard import TrainingDashboard
from trainyard.report.dashboard.html import PAGE
from trainyard.report.dashboard.json_report import json_report
from trainyard.report.dashboard.markdown import markdown_report
from trainyard.report.dashboard.text import text_report
from trainyard.report.facts.figures import brief_figures
from trainyard.report.facts.history import Curve
from trainyard.report.facts.run_facts import read_facts
from trainyard.run.records import RecordWriter

NewRun = Callable[[], Any]
START = 1_790_000_000.0
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Collects tags, attributes and text; fails on a tag that is closed out of order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & {*self.open}:
            self.words += data + " "

    def tags_named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page_of(run: Any, *, now: float | None = None) -> Page:
    return Page(TrainingDashboard(str(run.path), now=now).generate_html_report())


def test_a_proven_run_shows_everything(new_run: NewRun) -> None:
    page = page_of(new_run().train(gpu=True).succeed().prove())
    words = (
        *("Trained and proven", "run 7", "600 of 600 steps", "one process: no network was used"),
        *("GPU memory", "60 % backward", "Loss", "Learning rate", "Gradient norm", "Tokens per second"),
        *("MFU", "Time of a step", "GPU use", "GPU temperature", "What the model writes", "def _parse_args"),
        *("Checkpoints", "Where it came from", "Python 3.11 standard library", "checkpoint saved"),
        *("Differs from the defaults", "All 4 lines"),
    )
    assert [word for word in words if word not in page.words] == []
    assert len(page.tags_named("svg")) == len(page.tags_named("figure")) == 12
    tables = len(page.tags_named("table"))
    assert len(page.tags_named("caption")) == tables == 4


def test_the_figures_and_every_part_of_the_proof_are_shown(new_run: NewRun) -> None:
    run = new_run().train(50).succeed().prove()
    path = run.layout.report / "proof.json"
    proof = json.loads(path.read_text())
    proof["parts"].append({"name": "kind", "passed": True, "is_judged": False, "evidence": "too short"})
    needs = [
        ("accuracy", 0.63, ">= 0.6", False),
        ("toxicity", 0.2, "<= 0.1", True),
        ("other", None, "", False),
    ]
    names = ("name", "value", "threshold", "is_missed")
    proof["figures"] = [dict(zip(names, each, strict=True)) | {"baseline": 0.61} for each in needs]
    path.write_text(json.dumps(proof | {"compared_with": "last green run 11"}))
    page = page_of(run)
    words = " ".join(page.words.split())
    assert "– kind too short" in words
    assert "last green run 11" in words
    assert "accuracy 0.63 0.61 ✓ >= 0.6" in words
    assert "toxicity 0.20 0.61 ✗ <= 0.1" in words
    assert "other not on record 0.61" in words


def test_the_page_needs_nothing_else(new_run: NewRun) -> None:
    text = TrainingDashboard(str(new_run().train().succeed().prove().path)).generate_html_report()
    page = Page(text)
    policies = [
        meta for meta in page.tags_named("meta") if meta.get("http-equiv") == "Content-Security-Policy"
    ]
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    assert [policy["content"] for policy in policies] == [
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}"
    ]
    assert page.tags_named("script") == [{"type": "application/json", "id": "data"}, {}, {}]
    forbidden = {"link", "img", "iframe", "object", "embed", "base", "form"}
    assert forbidden & {tag for tag, _ in page.tags} == set()
    loading = {"src", "href", "srcset", "action", "data", "onload", "onclick", "style"}
    assert [tag for tag, attributes in page.tags if loading & set(attributes)] == []


def test_the_charts_are_drawn_by_the_recorded_release_of_uplot() -> None:
    record = json.loads((PAGE / "uPlot.json").read_text())
    files = {path.name for path in PAGE.glob("uPlot.*")} - {"uPlot.json"}
    assert record["sha256"] == {
        name: hashlib.sha256((PAGE / name).read_bytes()).hexdigest() for name in sorted(files)
    }
    assert f"(v{record['version']})" in (PAGE / "uPlot.iife.min.js").read_text()[:80]


def test_failures_come_first_with_their_next_step(new_run: NewRun) -> None:
    page = page_of(new_run().train().succeed().prove(failing="stored"))
    text = page.words
    assert text.index("Not proven: stored") < text.index("SHA-256 differs") < text.index("training loss")
    assert text.count("trainyard store sync") == 1


@pytest.mark.parametrize(
    "hostile", ['<script>alert("1")</script>', "</pre></style>\"'><img src=x onerror=y>", "&lt;b&gt;"]
)
def test_text_of_a_run_stays_text(new_run: NewRun, hostile: str) -> None:
    run = new_run().train(20).end("failed", 1, hostile, sample=hostile)
    run.layout.config_file.write_text(hostile)
    run.layout.events_file.write_text('{"event": %s, "step": 1, "x": %s}\n' % ((json.dumps(hostile),) * 2))
    page = page_of(run)
    assert "img" not in {tag for tag, _ in page.tags}
    assert len(page.tags_named("script")) == 3
    assert page.words.count(hostile) >= 4


def test_unknown_facts_leave_no_empty_section(new_run: NewRun) -> None:
    page = page_of(new_run(), now=START)
    absent = ("Loss", "Learning rate", "training loss", "Proven", "Checkpoints", "Events", "GPU", "MFU")
    assert [word for word in absent if word in page.words] == []
    assert page.tags_named("svg") == []


def test_a_run_on_rewards_shows_them_in_place_of_its_loss(new_run: NewRun) -> None:
    run = new_run()
    writer = RecordWriter(run.layout.metrics_file)
    for step in range(1, 11):
        writer.write({"step": step, "loss": 0.001, "reward": 0.5 + 0.04 * step, "time": START + step})
    writer.close()
    page = page_of(run, now=START + 11)
    assert "reward 0.90 was 0.54" in " ".join(page.words.split())
    assert "Reward" in page.words
    assert "training loss" not in page.words
    assert "Reward over steps" in [svg.get("aria-label") for svg in page.tags_named("svg")]
    facts = read_facts(run.path)
    assert brief_figures(facts)[0] == "reward 0.54 → 0.90"
    assert 'title "Reward"' in markdown_report(facts)
    assert "Reward: 0.90" in " ".join(text_report(facts).split())
    assert json_report(facts)["training_metrics"]["reward"] == pytest.approx(0.9)


def test_a_single_row_draws_no_line(new_run: NewRun) -> None:
    assert page_of(new_run().train(1), now=START).tags_named("svg") == []


def chart_of(*lines: list[tuple[float, float]], figure: str = "loss") -> Chart:
    series = (Series(0, 0, figure, "", Curve(*np.array(line).T), None, "c0") for line in lines)
    return draw_chart(DrawnPanel(Panel("Loss", "", ((figure, ""),)), "", tuple(series)))


def test_the_chart_stays_in_its_frame_and_keeps_a_spike() -> None:
    values = [(float(step), 50.0 if step == 333 else 5 / step) for step in range(1, 1001)]
    chart = chart_of(values, [(300.0, 7.0)])
    points = [tuple(map(int, pair.split(","))) for pair in chart.lines[0][1].split()]
    assert len(points) < 1000
    assert all(0 <= across <= WIDTH and 0 <= down <= HEIGHT for across, down in points)
    assert min(down for _, down in points) < 10 < min(down for at, down in points if abs(at - 160) > 2)
    assert (chart.low, chart.high, chart.first, chart.last) == ("0.005", "50", "1", "1 k")
    assert chart_of([(1, 0.0029543), (2, 23_663.2)]).high == "23.7 k", "a longer one is cut off"


def test_equal_values_are_a_flat_line_in_the_middle() -> None:
    noise = [(float(step), 3e-4 + step * 1e-16) for step in range(1, 50)]
    assert {point.partition(",")[2] for point in chart_of(noise).lines[0][1].split()} == {"100"}


def test_sizes_have_units_and_start_at_zero() -> None:
    chart = chart_of([(1, 22.1), (2, 22.1)], figure="gpu_memory_bytes")
    assert (chart.low, chart.high) == ("0 GB", "22.1 GB")
