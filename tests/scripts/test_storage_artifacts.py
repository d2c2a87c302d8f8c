"""Listing, promoting and pruning as programs: what they print, what they change, how they end."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.conftest import Call

from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.commands import report, store_ls
from trainyard.run.directory import RunDirectory


def test_a_store_is_listed(called: Call, store: str, tmp_path: Path) -> None:
    done = called("store ls", "--store", store)
    assert done.returncode == 0, done.stderr
    head, row, total = done.stdout.splitlines()
    words = "run run id proof training checkpoints size age verdict"
    assert head.split() == words.split()
    assert row.startswith("7    20261120-214501-7c1f  proven  succeeded  2: 10, 20")
    assert row.endswith("complete (names and sizes)")
    files = [path for path in (tmp_path / "store").rglob("*") if path.is_file() and path.parent.name != "ids"]
    size = sum(path.stat().st_size for path in files)
    assert total == f"1 run, {size / 1000:.1f} kB"
    value = json.loads(called("store ls", "--store", store, "--json").stdout)
    [run] = value["runs"]
    assert (run["depth"], run["ok"]) == ("names and sizes", True)
    assert [each["step"] for each in run["checkpoints"]] == [10, 20]
    assert 0 <= run["age_seconds"] < 600  # a busy machine takes a minute for a command
    assert run["bytes"] == size


def test_a_list_of_runs_is_green_only_where_a_run_is_proven(
    finished_run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each way to be unproven × each list of a store: the word and the colour are those of the proof."""
    facts, rows = json.loads(finished_run.run_file.read_text()), finished_run.metrics_file.read_text()
    flat = "".join(json.dumps(json.loads(row) | {"loss": 0.25}) + "\n" for row in rows.splitlines())
    outcome = facts["outcome"]
    ways: dict[str, tuple[dict[str, Any], str, str]] = {
        "proven": ({}, rows, ""),
        "not proven: repeatable": ({"git": facts["git"] | {"dirty": True}}, rows, ""),
        "not proven: learned": ({"outcome": outcome | {"first_loss": 0.25}}, flat, ""),
        "not proven: stored": ({}, rows, "checkpoint-20/state.bin"),
        "not proven": ({"outcome": outcome | {"status": "failed", "exit_code": 1}}, rows, ""),
    }
    for number, (way, (changed, metrics, lost)) in enumerate(ways.items(), 1):
        url, page = (tmp_path / f"store-{number}").as_uri(), tmp_path / f"{number}.html"
        finished_run.run_file.write_text(json.dumps(facts | changed))
        finished_run.metrics_file.write_text(metrics)
        sync_run(open_store(url), finished_run, number)
        if lost:
            (tmp_path / f"store-{number}" / f"run-{number}" / lost).unlink()
        status = "failed" if way == "not proven" else "succeeded"
        store_ls.main(["--store", url])
        row = capsys.readouterr().out.splitlines()[1]
        assert f"  {way}  {status}  " in row, row
        store_ls.main(["--store", url, "--json"])
        [run] = json.loads(capsys.readouterr().out)["runs"]
        assert (run["proof"], run["status"]) == (way, status)
        report.main(["--store", url, "--output", str(page)])
        data = json.loads(page.read_text().partition('id="data">')[2].partition("</script>")[0])
        [listed] = [dict(zip(data["fields"], values, strict=True)) for values in data["rows"]]
        assert (listed["proof"], listed["status"]) == (way, status)


def test_what_is_missing_is_named_by_the_listing(called: Call, store: str, tmp_path: Path) -> None:
    (tmp_path / "store/run-7/checkpoint-20/state.bin").unlink()
    done = called("store ls", "--store", store)
    assert done.returncode == 1
    assert "1 wrong: run-7/checkpoint-20/state.bin: missing in the store" in done.stdout
    assert done.stderr.splitlines() == ["run-7/checkpoint-20/state.bin: missing in the store"]
    assert called("store ls", "--store", store, "--run-number", "8").returncode == 1


def test_a_checkpoint_is_promoted_kept_and_given_back_by_its_name(
    called: Call, store: str, tmp_path: Path
) -> None:
    line = ("store promote", "--store", store, "--run-number", "7", "--name", "production", "--json")
    dry = called(*line, "--step", "10", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert not (tmp_path / "store/promoted").exists()
    done = called(*line, "--step", "10", GITHUB_ACTOR="ada")
    assert done.returncode == 0, done.stderr
    pointer = json.loads(done.stdout)
    assert (pointer["step"], pointer["by"], pointer["depth"]) == (10, "ada", "full")
    assert "10 (production), 20" in called("store ls", "--store", store).stdout
    pruned = called("store prune", "--store", store, "--all-runs", "--keep-last", "1")
    assert "keep    run 7  checkpoint-10  " in pruned.stdout
    assert pruned.stdout.splitlines()[1].endswith("promoted as production")
    back = called("store restore", "--store", store, "--step", "production", "--to", "back", "--json")
    assert json.loads(back.stdout)["steps"] == [10]
    moved = called(*line, "--step", "newest", GITHUB_ACTOR="bob")
    assert "before: step 10 of run 7" in moved.stderr
    for wrong in (
        ("--step", "ten"),
        ("--step", "10", "--name", "Prod"),
        ("--step", "1", "--run-number", "auto"),
    ):
        assert called(*line, *wrong).returncode == 2
    assert called(*line, "--step", "11").returncode == 1
    withdraw = ("store promote", "--store", store, "--name", "production", "--withdraw")
    assert "would be taken back; nothing was changed" in called(*withdraw, "--dry-run").stderr
    assert "production of step 20 of run 7: taken back" in called(*withdraw).stderr
    assert called(*withdraw, "--json").returncode == 2
    assert called(*withdraw, "--step", "10").returncode == 2
    assert called(*line).returncode == 2
    unsigned = ("store restore", "--store", store, "--run-number", "7", "--to", "signed")
    assert called(*unsigned, "--public-key", "none.pub").returncode == 2


def test_pruning_plans_first_and_removes_when_told(called: Call, store: str, tmp_path: Path) -> None:
    line = ("store prune", "--store", store, "--run-number", "7", "--keep-last", "1")
    planned = called(*line)
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.splitlines()[1].startswith("remove  run 7  checkpoint-10  ")
    assert "1 checkpoints, " in planned.stderr
    assert "nothing was changed; --apply removes them" in planned.stderr
    assert (tmp_path / "store/run-7/checkpoint-10").is_dir()
    done = called(*line, "--apply", "--json", GITHUB_ACTOR="ada")
    assert done.returncode == 0, done.stderr
    [run] = json.loads(done.stdout)["runs"]
    assert [(each["step"], each["keep"]) for each in run["checkpoints"]] == [(20, True), (10, False)]
    assert not (tmp_path / "store/run-7/checkpoint-10").exists()
    verified = called("store verify", "--store", store, "--run-number", "7", "--depth", "full")
    assert verified.returncode == 0, verified.stderr
    assert called("store prune", "--store", store, "--all-runs").returncode == 2
    assert called("store prune", "--store", store, "--keep-last", "1").returncode == 2
    assert called(*line, "--apply", "--dry-run").returncode == 2
    (tmp_path / "store/run-7/checkpoint-20/state.bin").unlink()
    broken = called(*line)
    assert broken.returncode == 1
    assert "run 7: no checkpoint of it verifies" in broken.stderr
