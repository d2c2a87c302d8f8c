"""The lint of environments, by the command as people call it."""

import json
from pathlib import Path

import pytest
from tests.scripts.conftest import Call


def test_findings_have_their_place_reason_and_fix(called: Call, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM a:1\nENV FI_EFA_USE_DEVICE_RDMA=1\n")
    (tmp_path / "train.env").write_text("NCCL_TIMEOUT=1800\n")
    files = (tmp_path / "Dockerfile", tmp_path / "train.env")
    done = called("lint-environment", *files, "--instance-type", "g5.8xlarge", "--num-nodes", "2")
    assert done.returncode == 1
    assert f"{tmp_path}/Dockerfile:2: error: FI_EFA_USE_DEVICE_RDMA=1" in done.stdout
    assert f"{tmp_path}/train.env:1: warning: NCCL_TIMEOUT=1800" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 files, 2 variables: 1 error, 1 warning"
    asked = called("lint-environment", *files, "--instance-type", "p5.48xlarge", "--json")
    data = json.loads(asked.stdout)
    assert (asked.returncode, data["ok"]) == (0, True)
    assert data["files"] == {str(file): 1 for file in files}
    assert [(f["subject"], f["severity"], f["line"]) for f in data["findings"]] == [
        ("NCCL_TIMEOUT", "warning", 1),
    ]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a: [", (), "not valid YAML"),
        ("words\n", (), "job.yaml: not checked"),
        ("\0", (), "job.yaml"),
        ("", ("--instance-type", "p5.48xlage"), "did you mean p5.48xlarge?"),
    ],
)
def test_what_cannot_be_read_is_exit_code_2(
    text: str, options: tuple[str, ...], words: str, called: Call, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    done = called("lint-environment", tmp_path / "job.yaml", *options)
    assert done.returncode == 2
    assert words in done.stderr
    none = called("lint-environment", tmp_path / "none.yaml")
    assert (none.returncode, "none.yaml" in none.stderr) == (2, True)
