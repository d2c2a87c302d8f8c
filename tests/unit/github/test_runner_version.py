"""Which versions of GitHub's runner are reported, by age and by the releases after them."""

import pytest
from tests.cases import each_case

from trainyard.github.runner_version import (
    OLDEST,
    RunnerRelease,
    has_these_rules,
    parse_version,
    read_releases,
    version_problem,
)
from trainyard.github.runners import Runner, judge_versions

NOW = 1_800_000_000.0  # 2027-01-15
DAY = 86400.0
GPU = frozenset({"self-hosted", "gpu"})


def releases(*days_ago: float) -> tuple[RunnerRelease, ...]:
    """2.340.0 and the next releases, published that many days ago."""
    return tuple(RunnerRelease((2, 340 + n, 0), NOW - days * DAY) for n, days in enumerate(days_ago))


def test_the_first_release_after_it_decides() -> None:
    for days, expected in (
        (0, None),
        (22.9, None),
        (23.1, "from 2027-01-22"),
        (29.9, "from"),
        (30.1, "since"),
    ):
        for more in ((), (1.0,)):
            found = version_problem("2.340.0", releases(400, days, *more), now=NOW) or ""
            assert ("2.341.0 was published on" in found) is (expected is not None)
            assert f"GitHub gives no jobs to older ones {expected or ''}" in found or expected is None


def test_a_version_that_cannot_be_registered_is_reported_without_releases() -> None:
    for version in ("2.328.0", "2.99.9", "1.9.9"):
        for known in ((), releases(400, 200)):
            assert "2.329.0" in (version_problem(version, known, now=NOW) or "")
    assert version_problem(".".join(map(str, OLDEST)), (), now=NOW) is None


@pytest.mark.parametrize("text", ["", "latest", "2.340", "2.340.0-beta", "two.3.4"])
def test_an_unknown_version_is_not_judged(text: str) -> None:
    assert parse_version(text) is None
    assert version_problem(text, releases(400, 200), now=NOW) is None


def test_the_newest_version_is_never_refused_however_old_it_is() -> None:
    assert version_problem("2.341.0", releases(900, 800), now=NOW) is None
    assert version_problem("2.999.0", releases(900, 800), now=NOW) is None


def test_drafts_previews_and_other_tags_are_no_releases() -> None:
    one: dict[str, object] = {"tag_name": "v2.337.0", "published_at": "2026-09-16T10:00:00Z"}
    others: list[dict[str, object]] = [
        {**one, "draft": True},
        {**one, "prerelease": True},
        {**one, "tag_name": "nightly"},
    ]
    assert [each.version for each in read_releases([one, *others, {"tag_name": "v2.338.0"}])] == [(2, 337, 0)]


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("", True),
        ("https://github.com", True),
        ("https://us.ghe.com", True),
        ("https://a.example.org", False),
    ],
)
def test_an_enterprise_server_has_rules_of_its_own(server: str, expected: bool) -> None:
    assert has_these_rules(server) is expected


@each_case("version", ["", "2.341.0", "2.340.0", "2.300.0"])
@each_case("labels", [GPU, frozenset({"other"})], ids=["ours", "another's"])
def test_the_watch_reports_each_refused_version_once(version: str, labels: frozenset[str]) -> None:
    boxes = [Runner(name, True, False, labels | {"Linux"}, version) for name in ("a", "b")]
    found = list(judge_versions(boxes, GPU, releases(90, 60), now=NOW))
    is_refused = version in ("2.340.0", "2.300.0") and labels == GPU
    assert [outage.key for outage in found] == ([f"version {version}"] if is_refused else [])
    assert all(outage.title.startswith("GPU runner a, b has version") for outage in found)
