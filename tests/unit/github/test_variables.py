"""The names and values of variables and secrets; the names are those in the workflows and in their docs."""

import re
from pathlib import Path

import pytest
import yaml
from tests.cases import each_case

from trainyard.errors import ConfigError
from trainyard.github import variables

ROOT = Path(__file__).resolve().parents[3]


def test_variables_and_secrets_are_those_in_the_docs() -> None:
    page = (ROOT / "docs" / "variables.md").read_text()
    first, second = page.split("| variable | meaning |")[1].split("| secret | meaning |")
    own = {variables.LABELS, variables.STORE, variables.WATCH, variables.ROLE}
    rows = re.compile(r"^\| `(\w+)` \|", re.M)
    assert set(rows.findall(first)) == variables.OTHERS | own
    assert set(rows.findall(second.split("\n\n")[0])) == set(variables.SECRETS)


def test_the_workflows_read_each_variable_by_name() -> None:
    """All at once may have more than the 128 KB that a program takes in one variable."""
    files = [path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    read = set(re.findall(r"\bvars\.(\w+)", "".join(files)))
    own = {variables.LABELS, variables.STORE, variables.WATCH, variables.ROLE}
    assert variables.OTHERS | own <= read
    assert not any("toJSON(vars)" in text for text in files)


def test_the_expected_environments_are_those_of_the_workflows() -> None:
    files = {
        path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")
    }
    used = [settings.get("environment") for file in files.values() for settings in file["jobs"].values()]
    names = {each["name"] if isinstance(each, dict) else each for each in used if each}
    chosen = {name for name in names if "plan" in name}  # by the plan
    assert names - chosen - {"github-pages"} | {"training", "eks"} == {
        *variables.ENVIRONMENTS,
        variables.NOTIFY,
    }


@each_case("wrong", ["0", "-1", "many", "1.5", "1000", "9" * 9, "٣"])
def test_a_number_is_whole_and_within_its_bounds(wrong: str) -> None:
    assert variables.count_in({"A": ""}, "A", most=999, default=20) == 20
    assert variables.count_in({"A": "999"}, "A", most=999) == 999
    with pytest.raises(ConfigError, match=r"A: .* is not a whole number from 1 to 999"):
        variables.count_in({"A": wrong}, "A", most=999)


@each_case(
    ("text", "labels"),
    [
        ("gpu", ("gpu",)),
        ("gpu, h100,gpu", ("gpu", "h100")),
        ("runs-on/runner=4cpu-gpu", ("runs-on/runner=4cpu-gpu",)),
        ('["self-hosted","gpu"]', ("self-hosted", "gpu")),
        ("Self-Hosted,gpu", ("Self-Hosted", "gpu")),
        ("gpu box 1, h100", ("gpu box 1", "h100")),
        ("runs-on=${{ github.run_id }}/family=g5+g6", ("runs-on=${{ github.run_id }}/family=g5+g6",)),
        ("@my-org/gpu (large)", ("@my-org/gpu (large)",)),
        ('{"group":"gpu machines","labels":"h100"}', ("h100",)),
    ],
)
def test_labels_are_read_from_commas_or_json(text: str, labels: tuple[str, ...]) -> None:
    assert variables.parse_runner_labels(text).labels == labels


@each_case(
    "text",
    [
        *("", ",", "[]", "[1]", '["gpu"', "a  b", "$(x)", '{"a": 1}', "[[]]", "{0}"),
        *('["a\\nb"]', '[" a"]', "${{ github.token }}", "a'b", "x" * 257, "{}", '{"labels":["gpu"]}'),
        *('{"group":""}', '{"group":1}', '{"group":"a","labels":[1]}', '{"group":"a","runs":1}'),
    ],
)
def test_an_invalid_list_of_labels_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        variables.parse_runner_labels(text)


@each_case("url", ["s3://", "s3://A", "s3:/x", "file://x", "file:///", "https://x", "/mnt", " s3://ml"])
def test_an_invalid_store_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a store"):
        variables.parse_store(url)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("PROGRAM_ENV", ["training"]),
        ("TRAINYARD_RUNNERS_TOKEN", ["watch"]),
        ("watch/SLACK_BOT_TOKEN", ["watch"]),
        ("notify/SLACK_BOT_TOKEN", ["notify"]),
        ("SLACK_BOT_TOKEN", ["training", "notify"]),
        ("SLACK_WEBHOOK_URL", ["training", "notify"]),
    ],
)
def test_a_secret_goes_to_the_environments_that_read_it(text: str, places: list[str]) -> None:
    assert variables.parse_secret(text) == tuple((place, text.rpartition("/")[2]) for place in places)


@pytest.mark.parametrize(
    "url", ["s3://ml-runs", "s3://ml-runs/phase2/", "file:///mnt/storage/store", "file:///a b"]
)
def test_a_valid_store_is_accepted(url: str) -> None:
    assert variables.parse_store(url) == url.rstrip("/")
