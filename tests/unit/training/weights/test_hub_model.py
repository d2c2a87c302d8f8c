"""Models on the Hugging Face Hub, from a server on loopback that speaks its API."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from tests.answering import answering
from tests.cases import each_case
from tests.unit.training.weights.model_files import write_folder

from trainyard.config.from_weights import DeclaredShape
from trainyard.config.key_lookup import leaf_keys
from trainyard.config.load import dump_yaml
from trainyard.config.schema import ArchitectureConfig
from trainyard.errors import TrainyardError
from trainyard.training.weights.hub_model import HubModel, hub_model
from trainyard.training.weights.pretrained import load_with_weights, read_declared
from trainyard.training.weights.starting_weights import open_starting_weights

Ask = Callable[..., DeclaredShape]

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "fedcba9876543210fedcba9876543210fedcba98"


@dataclass
class Hub:
    """The content of the server, and the requests that it received."""

    models: dict[str, Path]
    """By repository: the folder with its files."""
    commit: str = COMMIT
    """The newest commit of every model; COMMIT and OTHER_COMMIT both exist."""
    gated: frozenset[str] = frozenset()
    """Repositories whose files need the token `hf_good`."""
    private: frozenset[str] = frozenset()
    """Repositories that are only seen with the token `hf_good`."""
    forbidden: frozenset[str] = frozenset()
    broken: bool = False
    """Answer 503 to everything."""
    requests: list[str] = field(default_factory=list)
    """`GET /path` of each request."""
    endpoint: str = ""

    def answer(
        self, method: str, path: str, _body: object, headers: Mapping[str, str]
    ) -> tuple[int, Any, dict[str, str]]:
        """Answer a request as the Hub does."""
        path = unquote(urlsplit(path).path)
        self.requests.append(f"{method} {path}")
        if self.broken:
            return 503, b"down", {}
        parts = path.strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        repository = "/".join(parts[2:4] if is_api else parts[:2])
        has_token = "Bearer hf_good" in headers.values()
        if repository in self.forbidden:
            return _refusal(403, "Forbidden")
        if repository not in self.models or (repository in self.private and not has_token):
            return _refusal(404 if has_token else 401, "RepoNotFound")
        if not is_api and repository in self.gated and not has_token:
            return _refusal(403, "GatedRepo")
        folder, rest = self.models[repository], parts[4:] if is_api else parts[2:]
        revision = rest[1] if len(rest) > 1 else "main"
        if revision not in ("main", "v1", COMMIT, OTHER_COMMIT):
            return _refusal(404, "RevisionNotFound")
        if not is_api:
            file = folder / "/".join(rest[2:])
            if not file.is_file():
                return _refusal(404, "EntryNotFound")
            etag = hashlib.sha256(file.read_bytes()).hexdigest()
            return 200, file.read_bytes(), {"ETag": f'"{etag}"', "X-Repo-Commit": parts[3]}
        json_type = {"Content-Type": "application/json"}
        if rest[:1] == ["tree"]:
            return 200, [_file_facts(path, folder) for path in sorted(folder.rglob("*"))], json_type
        commit = self.commit if revision == "main" else COMMIT if revision == "v1" else revision
        return 200, {"id": repository, "modelId": repository, "sha": commit, "siblings": []}, json_type


def _refusal(status: int, code: str) -> tuple[int, Any, dict[str, str]]:
    return status, {"error": "no"}, {"X-Error-Code": code, "X-Error-Message": "no"}


def _file_facts(path: Path, folder: Path) -> dict[str, object]:
    name, kind = path.relative_to(folder).as_posix(), "directory" if path.is_dir() else "file"
    oid = hashlib.sha1(name.encode()).hexdigest()
    return {"type": kind, "path": name, "oid": oid, "size": 0 if path.is_dir() else path.stat().st_size}


SMOKE = Path(__file__).parents[4] / "configs" / "smoke.yaml"
NAME = "owner/Small-Llama"
SHAPE = ArchitectureConfig(
    hidden_size=32,
    intermediate_size=48,
    num_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=512,
    tie_word_embeddings=True,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as it is on the Hub, with unneeded files."""
    folder = write_folder(tmp_path_factory.mktemp("hub"), SHAPE)
    (folder / "pytorch_model.bin").write_bytes(b"not needed")
    (folder / "original").mkdir()
    (folder / "original" / "model.safetensors").write_bytes(b"not needed")
    return folder


@pytest.fixture
def hub(files: Path) -> Iterator[Hub]:
    hub = Hub({NAME: files})
    with answering(hub.answer) as hub.endpoint:
        yield hub


def declared_by(hub: Hub, home: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Read the declaration of a model on the Hub; patch settings that its library reads at import."""
    from huggingface_hub import constants

    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))

    def ask(path: str = NAME, **environment: str) -> DeclaredShape:
        endpoint = environment.pop("endpoint", hub.endpoint)
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", "HF_HUB_OFFLINE" in environment)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        declared = read_declared(path, frozenset(leaf_keys()))
        assert declared is not None
        return declared

    return ask


@pytest.fixture
def declared_by_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    return declared_by(hub, tmp_path, monkeypatch)


def test_names_on_the_hub_are_no_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_model("owner/name") == HubModel("owner/name", None)
    assert hub_model("owner/name@v1.0") == HubModel("owner/name", "v1.0")
    for path in ("name", "./owner/name", "~/owner/name", "/owner/name", "a/b/c", "owner/m.gguf", "a/.."):
        assert hub_model(path) is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert hub_model("owner/name") is None


def test_a_model_is_described_without_its_weights_at_its_commit(hub: Hub, declared_by_hub: Ask) -> None:
    declared = declared_by_hub()
    pinned = f"{NAME}@{COMMIT}"
    expected = {"model.name": "Small-Llama", "model.tokenizer": pinned, "model.architecture.hidden_size": 32}
    assert (declared.path, dict(declared.values) | expected) == (pinned, declared.values)
    got = {line.rpartition("/")[2] for line in hub.requests if line.startswith("GET /owner")}
    assert got == {"config.json", "tokenizer.json"}


def test_weights_are_downloaded_once_and_a_run_resumes_with_the_commit_it_started_with(
    hub: Hub, declared_by_hub: Ask, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    declared_by_hub()
    settings = [f"model.path={NAME}"]
    found = load_with_weights(SMOKE, settings, None).config
    with caplog.at_level("INFO", "trainyard"):
        for _ in range(2):
            assert open_starting_weights(found.model) is not None
    assert caplog.text.count(f"{NAME}@{COMMIT}: downloading") == 1
    got = [line for line in hub.requests if line.startswith("GET /owner") and line.endswith("safetensors")]
    assert got == [f"GET /{NAME}/resolve/{COMMIT}/model.safetensors"]
    hub.commit = OTHER_COMMIT
    (tmp_path / "config.yaml").write_text(dump_yaml(found))
    again = load_with_weights(SMOKE, settings, tmp_path).config
    assert (again.model.path, again.model.architecture.hidden_size) == (f"{NAME}@{COMMIT}", 32)


def test_a_revision_is_used_and_cached_files_need_no_network(hub: Hub, declared_by_hub: Ask) -> None:
    assert declared_by_hub(f"{NAME}@v1").path == f"{NAME}@{COMMIT}"
    assert declared_by_hub(f"{NAME}@{OTHER_COMMIT}").path == f"{NAME}@{OTHER_COMMIT}"
    hub.requests.clear()
    assert declared_by_hub(f"{NAME}@v1", HF_HUB_OFFLINE="1").path == f"{NAME}@{COMMIT}"
    assert not hub.requests
    hub.broken = True
    assert declared_by_hub(f"{NAME}@{COMMIT}").path == f"{NAME}@{COMMIT}"


GATED = {"gated": frozenset({NAME})}
BAD, GOOD = {"HF_TOKEN": "hf_bad"}, {"HF_TOKEN": "hf_good"}


@each_case(
    ("name", "state", "environment", "code", "problem"),
    [
        (NAME, {}, {"HF_HUB_OFFLINE": "1"}, 4, "HF_HUB_OFFLINE is set and it is not in the cache).\nUnset"),
        (NAME, {}, {"endpoint": "http://127.0.0.1:9"}, 4, "Check the network, HTTPS_PROXY"),
        (NAME, {"broken": True}, {}, 4, "503"),
        (f"{NAME}@nowhere", {}, {}, 2, "it has no revision 'nowhere'"),
        ("owner/nothing", {}, {}, 2, "cannot be read (401): check the spelling"),
        ("owner/nothing", {}, GOOD, 2, "cannot be read (404)"),
        ("owner/nothing", {}, BAD, 2, "cannot be read (401)"),
        (NAME, GATED, {}, 2, "is gated: accept its terms at"),
        (NAME, {"forbidden": frozenset({NAME})}, BAD, 2, "cannot be read (403)"),
    ],
)
def test_each_reason_has_its_own_message(
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    state: dict[str, Any],
    environment: dict[str, str],
    code: int,
    problem: str,
) -> None:
    hub = Hub({NAME: files}, **state)
    with answering(hub.answer) as hub.endpoint, pytest.raises(TrainyardError) as refused:
        declared_by(hub, tmp_path, monkeypatch)(name, **environment)
    assert refused.value.exit_code == code
    assert f"model.path: {name} is not a path on this machine" in str(refused.value)
    assert problem in str(refused.value)
    assert "hf_" not in str(refused.value)


@pytest.mark.parametrize("kind", ["gated", "private"])
def test_a_token_gives_access_to_gated_and_private_models(hub: Hub, declared_by_hub: Ask, kind: str) -> None:
    setattr(hub, kind, frozenset({NAME}))
    assert declared_by_hub(HF_TOKEN="hf_good").values["model.architecture.hidden_size"] == 32
