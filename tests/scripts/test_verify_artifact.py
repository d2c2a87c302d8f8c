"""The verification as a program: what it reads, what it names, how it ends."""

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from tests.scripts.conftest import Call

from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.gateways.model_signing import signer_from
from trainyard.run.directory import RunDirectory


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
    done = verify("--store", folder.as_uri(), "--run-dir", run.path, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["local"] == {"ok": True, "steps": [100], "problems": [], "parts": False}
    assert result["stored"]["objects_verified"] == 5
    assert result["stored"]["run_id"] == "run-a"
    assert "stored: 5 of 5 objects of run 7 (" in done.stderr and "[ok]\n" in done.stderr


def test_a_store_that_cannot_be_reached_ends_with_exit_4(verify: Call, folder: Path) -> None:
    assert verify("--store", folder.as_uri(), "--run-number", 7).returncode == 4
    variables = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_MAX_ATTEMPTS": "1"}
    variables["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9"
    assert verify("--store", "s3://ml-runs", "--run-number", 7, **variables).returncode == 4


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
    signed = verify(*demanded)
    assert signed.returncode == 0, signed.stderr
    assert json.loads(signed.stdout)["signature"]["checked"] is True
    assert (
        "signature: manifests/run-7-manifest.json and every object that it lists are signed [ok]"
        in signed.stderr
    )
    assert verify("--run-dir", run.path, "--public-key", public).returncode == 2
