"""The published JSON Schema, and that of a pod template, which finds wrong fields with their place."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from write_config_schema import fragment_of

from trainyard.config.key_lookup import leaf_keys
from trainyard.config.load import load_config
from trainyard.config.pod_schema import find_schema_problems, pod_fields, split_list
from trainyard.errors import ConfigError

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


MAIN = {"name": "main"}
WRONG: tuple[tuple[str, Any, str], ...] = (
    ("", {"spec": ["a"], "kind": "Pod"}, "spec: expected a mapping, got a list"),
    ("", {"status": {}}, "status: unknown key; valid here: metadata, spec"),
    ("metadata", {"name": "x"}, "metadata.name: unknown key; valid here: annotations, labels"),
    ("metadata", {"labels": {"team": 7}}, "metadata.labels.team: expected text, got 7"),
    ("spec", {"hostNetwork": "yes"}, 'spec.hostNetwork: expected true or false, got "yes"'),
    ("spec", {"priority": True}, "spec.priority: expected a whole number, got true"),
    ("spec", {"dnsPolicy": "First"}, "spec.dnsPolicy: expected ClusterFirst, "),
    ("spec", {"imagePullSecrets": ["a"]}, 'spec.imagePullSecrets[0]: expected a mapping, got "a"'),
    ("spec", {"tolerations": {"key": "a"}}, "spec.tolerations: expected a list, got a mapping"),
    ("spec", {"containers": [{"image": "a"}]}, "spec.containers[0].name: missing"),
    ("spec", {"containers": [MAIN, MAIN]}, "spec.containers[main]: there are two entries with this name"),
    ("spec", {"containers": [None]}, "spec.containers[0]: an entry may not be null"),
    (
        "spec",
        {"containers": [{**MAIN, "volumeMount": []}]},
        "spec.containers[main].volumeMount: unknown key; did you mean volumeMounts?",
    ),
    ("spec", {"containers": [{"name": "a", "$patch": "delete"}]}, "spec.containers[a].$patch: not supported"),
    ("spec", {"$setElementOrder/volumes": []}, "spec.$setElementOrder/volumes: not supported"),
    ("spec", {"overhead": {"cpu": []}}, "spec.overhead.cpu: expected text or a number, got"),
    ("spec", {"affinity": {"nodeAfinity": {}}}, "spec.affinity.nodeAfinity: unknown key; did you mean nodeA"),
)


@each_case("section, value, message", WRONG)
def test_a_wrong_field_is_named_with_its_place(section: str, value: Any, message: str) -> None:
    fragment = {section: value} if section else value
    found = [f"{path}: {reason}" for path, reason in find_schema_problems(fragment)]
    assert any(line.startswith(message) for line in found), found


WRONG_FILE = """\
model: {name: x}
training: {max_steps: 9}
cluster:
  pod:
    template:
      metadata: {labels: {team: vision}}
      spec:
        hostNetwrk: true
        priority: x
"""


def test_loading_names_every_problem_with_its_file_and_line(tmp_path: Any) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(WRONG_FILE)
    with pytest.raises(ConfigError) as refused:
        load_config(file)
    lines = str(refused.value).splitlines()
    assert lines[0].startswith(f"{file}:8: cluster.pod.template.spec.hostNetwrk: unknown key; did you mean")
    assert lines[1].startswith(f"{file}:9: cluster.pod.template.spec.priority: expected a whole number")


def test_every_type_of_the_table_is_known() -> None:
    """A generator that meets a new notation of OpenAPI must not write a table that cannot be read."""
    table = {name: fields for name, fields in pod_fields().items() if name != "source"}
    kinds = {kind for fields in table.values() for name, kind in fields.items() if name != "*"}
    for kind in kinds:
        plain = (split_list(kind) or (kind, ""))[0].removesuffix("{}")
        assert plain.startswith("=") or plain in table or set(plain.split("|")) <= SCALARS, kind


SCALARS = {"boolean", "integer", "number", "string"}
