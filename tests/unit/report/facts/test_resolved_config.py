"""Reading a run's configuration without validation, and its digests."""

import hashlib
from pathlib import Path

from tests.cases import each_case

from trainyard.config.load import config_sha256, dump_yaml, load_config
from trainyard.proof.stored_runs import config_digests
from trainyard.report.facts.resolved_config import config_value, read_config_text

ROOT = Path(__file__).resolve().parents[4]


@each_case(
    "text",
    [None, "", "a: [", "\t", "3", "- a", "notifications: 3", "notifications: {slack: }", "a: 2026-13-45"],
)
def test_an_invalid_configuration_has_no_values(text: str | None) -> None:
    assert config_value(text, "notifications.slack.enabled") is None


def test_a_value_is_found_by_its_dotted_key() -> None:
    assert config_value("notifications: {slack: {enabled: false}}", "notifications.slack.enabled") is False


def test_a_missing_file_has_no_text_and_no_digests(tmp_path: Path) -> None:
    assert read_config_text(tmp_path / "config.yaml") is None
    assert config_digests(None) == frozenset()


def test_a_configuration_is_known_by_its_values_and_by_its_bytes() -> None:
    config = load_config(ROOT / "configs" / "smoke.yaml").config
    content = dump_yaml(config).encode()
    assert config_digests(content) == {config_sha256(config), hashlib.sha256(content).hexdigest()}
