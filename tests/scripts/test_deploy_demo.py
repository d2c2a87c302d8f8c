"""Messages of `make deploy-demo` where it cannot run; `test_training_on_nodes.py` runs such a cluster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import warm_start
from tests.scripts.conftest import ROOT

SMOKE, DEMO = ROOT / "configs" / "smoke.yaml", ROOT / "tests" / "deploy_demo.py"
KIT = {
    "nothing": (),
    "half of it": ("operators",),
    "folders without their modules": ("operators", "node"),
}


def demo(folder: Path, kit: str, *more: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(DEMO), "--config", str(SMOKE), *more]
    return warm_start.run(line, timeout=240, env={**os.environ, "TRAINYARD_CONTROL_PLANE": kit}, cwd=folder)


@pytest.mark.parametrize("what", KIT)
def test_a_machine_without_the_kit_is_told_what_is_missing(what: str, tmp_path: Path) -> None:
    for name in KIT[what]:
        (tmp_path / "kit" / name).mkdir(parents=True)
    folder = str(tmp_path / "kit") if KIT[what] else ""
    done = demo(tmp_path, folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "TRAINYARD_CONTROL_PLANE" in done.stderr
    assert done.stderr.endswith("Nothing was started.\n")
    assert not (tmp_path / "runs").exists()


def test_a_machine_that_cannot_run_nodes_says_why(tmp_path: Path) -> None:
    for name in ("operators", "node"):
        (tmp_path / name).mkdir()
    (tmp_path / "operators" / "operators.py").write_text("")
    lines = ["class Unavailable(Exception): ...", "def require(): raise Unavailable('real nodes need root')"]
    (tmp_path / "node" / "real_node.py").write_text("\n".join(lines))
    done = demo(tmp_path, str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == "This machine cannot run real nodes: real nodes need root. Nothing was started.\n"
    (tmp_path / "node" / "real_node.py").write_text("def require(): ...")
    ready = demo(tmp_path, str(tmp_path), "--dry-run")
    assert ready.returncode == 0, ready.stderr
