"""The provenance in a manifest, and signed manifests: what a wrong signature says; no key is ever shown."""

import copy
import json
import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from trainyard.artifacts.record.manifest import parse_run_manifest
from trainyard.artifacts.record.signature import check_signature
from trainyard.artifacts.record.statement import resolved_config, statement_problems
from trainyard.artifacts.restore.restore import plan_restore, restore
from trainyard.artifacts.restore.selection import Selection
from trainyard.artifacts.store.layout import signature_key
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload.run_following import Patience, follow_run
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.config.load import config_sha256, dump_yaml, load_config
from trainyard.errors import ConfigError, VerificationError
from trainyard.gateways.local_store.folder import LocalStore
from trainyard.gateways.model_signing import KEY, PASSWORD, KeyVerifier, signer_from
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.identity import write_identity, write_outcome

MANIFEST = "manifests/run-1-manifest.json"


class Pair:
    """A private key as a secret contains it, and the file with its public key."""

    def __init__(self, path: Path, curve: ec.EllipticCurve) -> None:
        key = ec.generate_private_key(curve)
        self.secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"pass"))
        self.locked = locked.decode()
        self.public = path
        path.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path / "key.pub", ec.SECP256R1())


@pytest.fixture
def signed(store: Store, pair: Pair, make_run: Any) -> Any:
    """A run that is stored and signed as number 1."""
    run = make_run()
    report = sync_run(store, run, 1, signer=signer_from({KEY: pair.secret}))
    assert report.signature_key.startswith("signatures/run-1/")
    return run


def problems(store: Store, public: Path) -> tuple[str, ...]:
    return check_signature(store, 1, KeyVerifier(public)).problems


def test_a_signed_run_holds_with_the_public_key_alone(signed: Any, store: Store, pair: Pair) -> None:
    verdict = check_signature(store, 1, KeyVerifier(pair.public))
    assert (verdict.ok, verdict.checked) == (True, True)
    assert verdict.text() == f"{MANIFEST} and every object that it lists are signed"
    assert check_signature(store, 1, None).text() == f"{MANIFEST} is signed; give --public-key to check it"


def test_a_restore_that_demands_a_signature_gets_it_or_nothing(
    signed: Any, store: Store, pair: Pair, tmp_path: Path, make_run: Any
) -> None:
    verifier = KeyVerifier(pair.public)
    assert restore(store, Selection(1), tmp_path / "back", verifier=verifier).steps == (100, 200)
    sync_run(store, make_run("other"), 2)
    for attempt in (restore, plan_restore):
        with pytest.raises(
            VerificationError, match=r"manifests/run-2-manifest\.json: these bytes are not signed"
        ):
            attempt(store, Selection(2), tmp_path / "none", verifier=verifier)
    assert not (tmp_path / "none").exists()


def test_a_store_that_gives_one_manifest_to_use_and_another_to_check_is_noticed(
    signed: Any, folder: Path, pair: Pair, tmp_path: Path
) -> None:
    """The first answer is forged; later answers are the signed manifest."""

    class TwoFaced(LocalStore):
        reads = 0

        def stream(self, key: str, *given: Any, **rest: Any) -> Any:
            content = b"".join(super().stream(key, *given, **rest))
            if key == MANIFEST:
                self.reads += 1
                content = content.replace(b"3f2c1ab", b"evil1ab") if self.reads == 1 else content
            yield content

    with pytest.raises(VerificationError, match="signs another manifest than the one read before"):
        restore(TwoFaced(folder), Selection(1), tmp_path / "back", verifier=KeyVerifier(pair.public))


def test_model_signings_tool_verifies_a_copy(signed: Any, store: Store, folder: Path, pair: Pair) -> None:
    from model_signing import verifying

    signature = folder / signature_key(1, sha256_of_file(folder / MANIFEST))
    tool: Any = verifying.Config
    tool = tool().use_elliptic_key_verifier(public_key=pair.public).set_ignore_unsigned_files(True)
    tool.verify(folder, signature)
    (folder / "run-1/checkpoint-200/__0_0.distcp").write_bytes(b"other")
    with pytest.raises(ValueError, match=r"run-1/checkpoint-200/__0_0\.distcp"):
        tool.verify(folder, signature)


def test_another_key_is_named(signed: Any, store: Store, tmp_path: Path) -> None:
    other = Pair(tmp_path / "other.pub", ec.SECP256R1())
    assert problems(store, other.public)[0].endswith(
        f"was made with another key than the one of {other.public}"
    )


def test_a_changed_manifest_is_named(signed: Any, store: Store, folder: Path, pair: Pair) -> None:
    value = json.loads((folder / MANIFEST).read_bytes())
    value["outcome"] = {"status": "succeeded"}
    (folder / MANIFEST).write_text(json.dumps(value))
    assert problems(store, pair.public) == (
        f"{MANIFEST}: these bytes are not signed; "
        "it was changed after it was signed, or put by somebody else",
    )


def signature_of(folder: Path) -> Path:
    return folder / signature_key(1, sha256_of_file(folder / MANIFEST))


def test_a_signature_of_something_else_is_named(
    signed: Any, store: Store, folder: Path, pair: Pair, make_run: Any
) -> None:
    other = sync_run(store, make_run("other"), 2, signer=signer_from({KEY: pair.secret}))
    shutil.copy(folder / other.signature_key, signature_of(folder))
    assert problems(store, pair.public)[0].endswith("is the signature of other bytes")


def damage_payload(bundle: Any) -> None:
    bundle["dsseEnvelope"]["payload"] = "e30="


def damage_signature(bundle: Any) -> None:
    bundle["dsseEnvelope"]["signatures"][0]["sig"] = "MEUCIQ=="


def drop_envelope(bundle: Any) -> None:
    del bundle["dsseEnvelope"]


@pytest.mark.parametrize("damage", [damage_payload, damage_signature, drop_envelope])
def test_a_damaged_signature_is_named(
    signed: Any, store: Store, folder: Path, pair: Pair, damage: Callable[[Any], None]
) -> None:
    path = signature_of(folder)
    bundle = json.loads(path.read_bytes())
    damage(bundle)
    path.write_text(json.dumps(bundle))
    assert len(problems(store, pair.public)) == 1
    path.write_text("{")
    assert "is not a readable signature" in problems(store, pair.public)[0]


def test_a_key_may_be_locked_and_on_another_curve(tmp_path: Path, store: Store, make_run: Any) -> None:
    pair = Pair(tmp_path / "key.pub", ec.SECP384R1())
    sync_run(store, make_run(), 1, signer=signer_from({KEY: pair.locked, PASSWORD: "pass"}))
    assert problems(store, pair.public) == ()


def test_without_a_key_there_is_no_signer() -> None:
    assert signer_from({}) is None
    assert signer_from({KEY: ""}) is None


def test_the_key_is_in_no_message_and_in_no_log(
    store: Store, folder: Path, pair: Pair, make_run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    sync_run(store, make_run(), 1, signer=signer_from({KEY: pair.secret}))
    line = pair.secret.splitlines()[1]
    assert line not in caplog.text
    assert not any(line.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def pem_of(key: Any, form: PrivateFormat = PrivateFormat.PKCS8, locked: bool = False) -> str:
    encryption = BestAvailableEncryption(b"pass") if locked else NoEncryption()
    return str(key.private_bytes(Encoding.PEM, form, encryption).decode())


def test_what_is_no_key_is_refused_and_never_shown(tmp_path: Path) -> None:
    elliptic = ec.generate_private_key(ec.SECP256R1())
    public = elliptic.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    mistakes = {
        "a public key": public.decode(),
        "OpenSSH": pem_of(elliptic, PrivateFormat.OpenSSH),
        "locked": pem_of(elliptic, locked=True),
        "lines in one": pem_of(elliptic).replace("\n", "\\n"),
        "another kind": pem_of(ed25519.Ed25519PrivateKey.generate()),
        "another curve": pem_of(ec.generate_private_key(ec.SECP256K1())),
        "no text": "\udcff",
        "cut off": pem_of(elliptic)[:80],
    }
    for text in mistakes.values():
        with pytest.raises(ConfigError, match="is not a private key in PEM on the curve") as refused:
            signer_from({KEY: text})
        assert text not in str(refused.value)
    (tmp_path / "rsa.pub").write_bytes(
        rsa.generate_private_key(public_exponent=65537, key_size=2048)
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    for name, words in (("rsa.pub", "is not a public key"), ("none", "cannot be read")):
        with pytest.raises(ConfigError, match=words):
            KeyVerifier(tmp_path / name)
    for text in (pem_of(elliptic), mistakes["locked"]):
        with pytest.raises(ConfigError, match=PASSWORD):
            signer_from({KEY: text, PASSWORD: "mistyped"})


def test_every_manifest_of_a_followed_run_is_signed(
    store: Store, folder: Path, pair: Pair, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard.artifacts.upload.run_following._SETTLE_SECONDS", 0.2)
    run, stop = make_run(), threading.Event()
    stop.set()
    signer = signer_from({KEY: pair.secret})
    follow_run(store, run, 1, stop=stop, patience=Patience(poll_seconds=0.01), signer=signer)
    assert problems(store, pair.public) == ()
    write_outcome(run.run_file, {"status": "succeeded"})
    follow_run(store, run, 1, stop=stop, patience=Patience(poll_seconds=0.01), signer=signer)
    assert problems(store, pair.public) == ()
    manifests = {sha256_of_file(path) for path in (folder / "manifests").iterdir()}
    assert {p.name.partition(".")[0] for p in (folder / "signatures/run-1").iterdir()} == manifests


SMOKE = Path(__file__).resolve().parents[4] / "configs" / "smoke.yaml"


@pytest.fixture
def stored(store: Store, folder: Path, make_run: Any) -> dict[str, Any]:
    """The manifest of a run whose facts are all known."""
    run, config = make_run(), load_config(SMOKE, []).config
    run.config_file.write_text(dump_yaml(config))
    facts = {
        "git": {"commit": "3f2c1ab" * 5, "dirty": True, "diff_sha256": "d" * 64},
        "lock_sha256": "1" * 64,
        "config_sha256": config_sha256(config),
        "data": {"fingerprint": "f" * 64},
        "image_digest": "sha256:" + "e" * 64,
        "hardware": {"device": "cuda", "device_name": "NVIDIA H200"},
        "ci": {"run_id": "99", "repository": "o/r"},
        "parent": {"checkpoint": "/c", "manifest_sha256": "a" * 64},
    }
    write_identity(run.run_file, "run-run", facts)
    sync_run(store, run, 1)
    value: dict[str, Any] = json.loads((folder / "manifests/run-1-manifest.json").read_bytes())
    return value


def test_the_statement_names_every_object_and_where_the_run_came_from(stored: dict[str, Any]) -> None:
    statement = stored["statement"]
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    digests = {entry["name"]: entry["digest"]["sha256"] for entry in statement["subject"]}
    assert digests == {entry["key"]: entry["sha256"] for entry in stored["objects"]}
    predicate = statement["predicate"]
    assert predicate["git"] == {"commit": "3f2c1ab" * 5, "dirty": True, "diff_sha256": "d" * 64}
    assert predicate["config"]["training"]["seed"] == load_config(SMOKE, []).config.training.seed
    assert predicate["parent"]["manifest_sha256"] == "a" * 64
    assert predicate["runner"] == {"run_id": "99", "repository": "o/r"}
    kept = {"lock_sha256", "config_sha256", "data", "image_digest", "hardware"}
    assert {key: predicate[key] for key in kept} == {key: stored["provenance"][key] for key in kept}


def test_a_later_statement_names_the_manifest_before(store: Store, folder: Path, make_run: Any) -> None:
    run = make_run()
    sync_run(store, run, 1)
    make_run(steps=(300,))
    sync_run(store, run, 1)
    value = json.loads((folder / "manifests/run-1-manifest-2.json").read_bytes())
    assert value["statement"]["predicate"]["parent_manifest"] == value["supersedes"]
    assert "config" not in value["statement"]["predicate"]  # the run has no digest of a config on record


def test_another_config_than_the_one_on_record_is_not_claimed() -> None:
    assert resolved_config({"a": 1}, {"config_sha256": "0" * 64}) == {}
    assert resolved_config({"a": float("nan")}, {}) == {}


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("subject", 0, "digest", "sha256"), "0" * 64, "another subject"),
        (("predicateType",), "urn:x", "another predicateType"),
        (("predicate", "git", "commit"), "0" * 40, "another git"),
        (("predicate", "added"), 1, "another added"),
        (("predicate", "config", "training", "seed"), -1, "another configuration than the run's record"),
        (("predicate", "config"), 5, "another config"),
        (("predicate",), None, "has no predicate"),
    ],
)
def test_a_statement_that_says_otherwise_is_named(
    stored: dict[str, Any], path: tuple[Any, ...], value: Any, words: str
) -> None:
    changed = copy.deepcopy(stored)
    place = changed["statement"]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    problems = statement_problems(parse_run_manifest(json.dumps(changed).encode(), "m"))
    assert problems
    assert words in problems[0]


def test_a_stored_manifest_with_another_statement_does_not_verify(
    stored: dict[str, Any], store: Store, folder: Path
) -> None:
    assert verify_run(store, 1, depth=Depth.LISTING).ok
    stored["statement"]["predicate"]["git"]["dirty"] = False
    (folder / "manifests/run-1-manifest.json").write_text(json.dumps(stored))
    found = verify_run(store, 1, depth=Depth.LISTING)
    assert found.problems == ("run-1: the statement has another git than the manifest",)
