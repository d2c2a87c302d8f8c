"""The published JSON Schema: true to the configuration, current, and usable by an outside tool."""

import subprocess
import sys
from pathlib import Path

from write_config_schema import fragment_of

from trainyard.config.key_lookup import leaf_keys

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "configs/training_configuration.schema.json"
SHIPPED = sorted(path for path in (ROOT / "configs").rglob("*.yaml") if path.parent.name != "programs")


def test_an_outside_tool_takes_every_shipped_file_and_refuses_a_misspelt_key(tmp_path: Path) -> None:
    def check(*files: Path) -> subprocess.CompletedProcess[str]:
        tool = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(PUBLISHED), *map(str, files)]
        return subprocess.run(tool, capture_output=True, text=True, check=False)

    assert len(SHIPPED) >= 3
    assert check(*SHIPPED).returncode == 0
    (tmp_path / "a.yaml").write_text("extends: [b.yaml, c.yaml]\ntraining: {epochs: null}\n")
    assert check(tmp_path / "a.yaml").returncode == 0
    (tmp_path / "c.yaml").write_text("training: {max_step: 5}\n")
    refused = check(tmp_path / "c.yaml")
    assert refused.returncode == 1
    assert "max_step" in refused.stdout


def test_every_key_says_what_it_means() -> None:
    assert [key for key in leaf_keys() if not fragment_of(key).get("description")] == []
