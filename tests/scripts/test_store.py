"""A store on the command line: listed, promoted, pruned, restored, verified; and a run of an old commit."""

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from tests.integration.planted.yard import script
from tests.scripts.conftest import NO_ANSWER, Call, require_success

from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import Selection
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.commands import report, store_ls
from trainyard.gateways.model_signing import signer_from
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import verify_checkpoint
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run


def test_a_store_is_listed(called: Call, store: str, tmp_path: Path) -> None:
    done = require_success(called("store ls", "--store", store))
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
    require_success(called(*line, "--step", "10", "--dry-run"))
    assert not (tmp_path / "store/promoted").exists()
    done = require_success(called(*line, "--step", "10", GITHUB_ACTOR="ada"))
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
    named, of_none = ("--step", "10", "--name", "Prod"), ("--step", "1", "--run-number", "auto")
    for wrong in (("--step", "ten"), named, of_none):
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
    planned = require_success(called(*line))
    assert planned.stdout.splitlines()[1].startswith("remove  run 7  checkpoint-10  ")
    assert "1 checkpoints, " in planned.stderr
    assert "nothing was changed; --apply removes them" in planned.stderr
    assert (tmp_path / "store/run-7/checkpoint-10").is_dir()
    done = require_success(called(*line, "--apply", "--json", GITHUB_ACTOR="ada"))
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


def test_a_run_is_planned_restored_and_proven_again(
    called: Call, store: str, finished_run: RunDirectory, tmp_path: Path
) -> None:
    line = ("store restore", "--store", store, "--run-number", "7", "--to", "back")
    planned = require_success(called(*line, "--step", "newest", "--dry-run", "--json"))
    assert json.loads(planned.stdout)["steps"] == [20]
    assert not (tmp_path / "back").exists()
    done = require_success(called(*line, "--json"))
    report = json.loads(done.stdout)
    assert (report["steps"], report["run_number"], report["kept"]) == ([10, 20], 7, 0)
    assert "restored: run 7 → " in done.stderr
    assert f"resume: {report['go_on']}" in done.stderr
    assert (tmp_path / "back" / "run.json").read_bytes() == finished_run.run_file.read_bytes()
    require_success(called("store verify", "--store", store, "--run-dir", "back", "--depth", "full"))
    again = called(*line)
    assert again.returncode == 2
    assert "is not empty, and nothing in it is replaced" in again.stderr


def test_the_records_of_a_run_are_restored_and_no_checkpoint_with_them(
    called: Call, store: str, finished_run: RunDirectory, tmp_path: Path
) -> None:
    line = ("store restore", "--store", store, "--run-number", "7", "--step", "none")
    outputs = {"GITHUB_ACTIONS": "true", "GITHUB_OUTPUT": str(tmp_path / "output")}
    require_success(called(*line, "--to", "records", **outputs))
    names = {path.name for path in (tmp_path / "records").iterdir()}
    assert {"run.json", "config.yaml", "metrics.jsonl"} <= names
    assert not (tmp_path / "records" / "checkpoints").exists()
    told = (tmp_path / "output").read_text()
    manifest = tmp_path / "store" / "manifests" / "run-7-manifest.json"
    assert manifest.name in told
    assert sha256_of_file(manifest) in told
    refused = called(*line[:4], "8", *line[5:], "--to", "again", **outputs)
    assert refused.returncode == 1, refused.stderr
    assert "reason<<" in (tmp_path / "output").read_text()


def test_how_it_ends(called: Call, store: str, tmp_path: Path) -> None:
    state = tmp_path / "store/run-7/checkpoint-20/state.bin"
    state.write_bytes(state.read_bytes()[:-1])
    line = ("store restore", "--store", store, "--to", "back")
    whole = called(*line, "--run-number", "7")
    assert whole.returncode == 1
    assert "run-7/checkpoint-20/state.bin: 4,999 bytes arrived, the manifest says 5,000" in whole.stderr
    newest = called(*line, "--run-number", "7", "--step", "newest", "--json")
    assert newest.returncode == 0
    assert json.loads(newest.stdout)["steps"] == [10]
    assert "checkpoint-20 passed over" in newest.stderr
    assert newest.stderr.count("[degraded]") == 1
    shutil.rmtree(tmp_path / "back")
    assert called(*line).returncode == 2
    assert called(*line, "--run-number", "auto").returncode == 2
    missing = called(*line, "--run-number", "8")
    assert missing.returncode == 1
    assert f"Run 8 is not in {store}; it has 7. " in missing.stderr
    away = ("store restore", "--store", "s3://nobody-here", "--run-number", "7", "--to", "back")
    down = called(*away, **NO_ANSWER)
    assert down.returncode == 4
    assert not (tmp_path / "back").exists()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def run(small_run: RunDirectory, folder: Path) -> RunDirectory:
    """A run that is stored as number 7."""
    sync_run(open_store(folder.as_uri()), small_run, 7)
    return small_run


@pytest.fixture
def verify(called: Call) -> Call:
    return lambda *arguments, **variables: called("store verify", *arguments, **variables)


def test_a_folder_that_is_no_run_is_wrong_usage(verify: Call, run: RunDirectory, folder: Path) -> None:
    run.run_file.unlink()
    for arguments in ((), ("--store", folder.as_uri()), ("--store", folder.as_uri(), "--run-number", 7)):
        done = verify("--run-dir", run.path, *arguments)
        assert done.returncode == 2, done.stderr
        assert f"{run.run_file}: missing, so {run.path} is not a run directory" in done.stderr


def test_both_sides_are_compared_and_told_as_json(verify: Call, run: RunDirectory, folder: Path) -> None:
    done = require_success(verify("--store", folder.as_uri(), "--run-dir", run.path, "--json"))
    result = json.loads(done.stdout)
    assert result["local"] == {"ok": True, "steps": [100], "problems": [], "parts": False}
    assert result["stored"]["objects_verified"] == 5
    assert result["stored"]["run_id"] == "run-a"
    assert "stored: 5 of 5 objects of run 7 (" in done.stderr and "[ok]\n" in done.stderr


def test_a_store_that_cannot_be_reached_ends_with_exit_4(verify: Call, folder: Path) -> None:
    assert verify("--store", folder.as_uri(), "--run-number", 7).returncode == 4
    assert verify("--store", "s3://ml-runs", "--run-number", 7, **NO_ANSWER).returncode == 4


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--run-number", "7"],
        ["--store", "file:///x"],
        ["--store", "file:///x", "--run-number", "none"],
        ["--store", "nowhere", "--run-number", "7"],
        ["--run-dir", "/none"],
    ],
)
def test_wrong_usage_ends_with_exit_2(verify: Call, arguments: list[str]) -> None:
    done = verify(*arguments)
    assert done.returncode == 2, done.stderr


def test_a_signature_is_held_against_a_public_key_and_its_lack_is_a_no(
    verify: Call, run: RunDirectory, folder: Path, tmp_path: Path
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = tmp_path / "key.pub"
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    demanded = ("--store", folder.as_uri(), "--run-number", 7, "--public-key", public, "--json")
    unsigned = verify(*demanded)
    assert unsigned.returncode == 1
    assert "these bytes are not signed; no signature is stored\n" in unsigned.stderr
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    sync_run(open_store(folder.as_uri()), run, 7, signer=signer_from({"TRAINYARD_SIGNING_KEY": secret}))
    signed = require_success(verify(*demanded))
    assert json.loads(signed.stdout)["signature"]["checked"] is True
    assert (
        "signature: manifests/run-7-manifest.json and every object that it lists are signed [ok]"
        in signed.stderr
    )
    assert verify("--run-dir", run.path, "--public-key", public).returncode == 2


FILTER: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""The filter for extraction; Python has it from 3.11.4 on."""
# A run of commit 1b382182 with two checkpoints, its store and its texts. Its configuration may have keys that
# are unknown today, so training does not resume from it.
MADE_BEFORE = Path(__file__).parent / "made_before" / "run.tar.gz"
STEPS = 6


@pytest.fixture
def old_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    with tarfile.open(MADE_BEFORE) as archive:
        archive.extractall(tmp_path, **FILTER)
    monkeypatch.chdir(tmp_path)  # its configuration names its texts from there
    return RunDirectory(tmp_path / "run")


def test_it_verifies_and_holds_the_state_that_it_ended_with(old_run: RunDirectory) -> None:
    from trainyard.training.checkpoint.stored_index import state_digests

    checkpoint = old_run.checkpoint(STEPS)
    assert verify_checkpoint(checkpoint).step == STEPS
    assert state_digests(checkpoint) == read_run(old_run.run_file)["outcome"]["state_sha256"]


def test_it_loads_into_the_state_of_today(old_run: RunDirectory) -> None:
    from trainyard.config.schema import ArchitectureConfig, TrainingConfig
    from trainyard.run.run_settings import read_settings
    from trainyard.training.checkpoint.checkpoint import load_checkpoint
    from trainyard.training.checkpoint.training_state import TrainingState
    from trainyard.training.model.model import build_model
    from trainyard.training.model.optimizer import build_optimizer

    shape = read_settings(old_run.config_file.read_bytes())["model"]["architecture"]
    model = build_model(ArchitectureConfig.model_validate(shape), seed=0)
    state = TrainingState(model, build_optimizer(model, TrainingConfig()))
    load_checkpoint(old_run.checkpoint(STEPS), state)
    assert state.step == STEPS
    assert state.digests() == read_run(old_run.run_file)["outcome"]["state_sha256"]


def test_its_store_verifies_restores_and_takes_a_sync_that_sends_nothing(old_run: RunDirectory) -> None:
    store = open_store((old_run.path.parent / "store").as_uri())
    found = verify_run(store, 1, depth=Depth.FULL, run_directory=old_run)
    assert found.ok, found.problems
    back = old_run.path.parent / "back"
    restore(store, Selection(1), back)
    files = {path.relative_to(back): path for path in back.rglob("*") if path.is_file()}
    assert len(files) > 10
    for name, path in files.items():
        assert path.read_bytes() == (old_run.path / name).read_bytes(), name
    assert sync_run(store, old_run, 1).sent == 0


def test_it_is_proven(old_run: RunDirectory) -> None:
    stored = ["--run-number", "1", "--store", (old_run.path.parent / "store").as_uri()]
    assert script("prove").main(["--run-dir", str(old_run.path), *stored]) == 0
