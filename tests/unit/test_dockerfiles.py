"""The images' Dockerfiles: judged by hadolint, pinned, not root, and every file that they copy exists."""

import hashlib
import json
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = sorted((ROOT / "docker").glob("*/Dockerfile"))
NAMES = [path.parent.name for path in DOCKERFILES]
TOOLS = Path(sys.executable).parent
OBSOLETE = (
    *("FI_PROVIDER", "FI_EFA_USE_DEVICE_RDMA", "FI_EFA_FORK_SAFE", "FI_EFA_ENABLE_SHM_TRANSFER"),
    *("FI_EFA_SET_CUDA_SYNC_MEMOPS", "FI_EFA_MTU_SIZE", "FI_EFA_TX_IOV_LIMIT", "FI_EFA_RX_IOV_LIMIT"),
    *("RDMAV_FORK_SAFE", "NCCL_PROTO", "NCCL_ALGO", "NCCL_TIMEOUT", "NCCL_NVLS_ENABLE", "NCCL_IB_DISABLE"),
    *("NCCL_SOCKET_IFNAME", "NCCL_ASYNC_ERROR_HANDLING", "LD_LIBRARY_PATH", "NCCL_BUFFSIZE"),
)


def instructions(path: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile with their words, continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    pairs = (line.strip().partition(" ") for line in joined.splitlines() if line.strip())
    return [(name, rest.strip()) for name, _, rest in pairs]


def given(path: Path, name: str) -> list[str]:
    return [rest for found, rest in instructions(path) if found == name]


def argument(path: Path, name: str) -> str:
    return next(rest.partition("=")[2] for rest in given(path, "ARG") if rest.startswith(f"{name}="))


def test_there_is_one_for_each_kind_of_training() -> None:
    assert NAMES == ["fsdp", "megatron", "verl"]


@pytest.mark.skipif(sys.platform != "linux", reason="hadolint's wheel is installed on Linux only")
@pytest.mark.parametrize("path", DOCKERFILES, ids=NAMES)
def test_hadolint_finds_nothing(path: Path) -> None:
    done = subprocess.run([TOOLS / "hadolint", "--format", "json", path], capture_output=True, text=True)
    assert json.loads(done.stdout) == []
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "docker").glob("*.sh")), ids=lambda path: path.name)
def test_shellcheck_finds_nothing(path: Path) -> None:
    done = subprocess.run([TOOLS / "shellcheck", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", DOCKERFILES, ids=NAMES)
def test_every_base_is_pinned_by_digest_and_the_last_stage_has_no_compiler_image(path: Path) -> None:
    stages = [rest.split() for rest in given(path, "FROM")]
    names = {words[2] for words in stages if len(words) == 3}
    for image, *_ in stages:
        if image in names:
            continue
        variable = re.fullmatch(r"\$\{(\w+)\}", image)
        assert variable, f"{image} is neither a stage nor an argument"
        assert re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", argument(path, variable[1])), image
    assert len(stages) >= 2, "one stage only"
    assert stages[-1][0] != "${CUDA_IMAGE}"


@pytest.mark.parametrize("path", DOCKERFILES, ids=NAMES)
def test_it_does_not_run_as_root(path: Path) -> None:
    users = [rest for name, rest in instructions(path) if name == "USER"]
    assert users == ["10001:10001"]
    assert [name for name, _ in instructions(path)][-2:] == ["USER", "CMD"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=NAMES)
def test_no_variable_that_a_modern_efa_stack_does_without(path: Path) -> None:
    text = "\n".join(rest for name, rest in instructions(path) if name in ("ENV", "RUN", "ARG"))
    assert [name for name in OBSOLETE if re.search(rf"\b{name}=", text)] == []


@pytest.mark.parametrize("path", DOCKERFILES, ids=NAMES)
def test_all_images_have_the_same_efa_stack(path: Path) -> None:
    assert argument(path, "EFA_INSTALLER_VERSION") == argument(DOCKERFILES[0], "EFA_INSTALLER_VERSION")
    sha = argument(path, "EFA_INSTALLER_SHA256")
    assert sha == argument(DOCKERFILES[0], "EFA_INSTALLER_SHA256") and re.fullmatch("[0-9a-f]{64}", sha)
    assert any("install_efa.sh" in rest for rest in given(path, "RUN"))


@pytest.mark.parametrize("path", DOCKERFILES, ids=NAMES)
def test_nothing_is_installed_without_its_hash(path: Path) -> None:
    installing = [rest for rest in given(path, "RUN") if re.search(r"\bpip (install|sync)\b", rest)]
    for rest in installing:
        for command in re.split(r"&&", rest):
            if re.search(r"\bpip (install|sync)\b", command):
                assert "--require-hashes" in command, command
    locks = re.findall(r"requirements-\w+\.txt", " ".join(given(path, "RUN")))
    assert locks and all("--hash=sha256:" in (ROOT / name).read_text() for name in set(locks))


def ignored(name: str) -> bool:
    """Return the files that .dockerignore excludes; the last line that matches decides."""
    result = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").rstrip("/")
        if not pattern or pattern.startswith("#"):
            continue
        parents = [name, *(str(each) for each in Path(name).parents if str(each) != ".")]
        if any(fnmatch(each, pattern) for each in parents):
            result = not line.startswith("!")
    return result


@pytest.mark.parametrize("path", DOCKERFILES, ids=NAMES)
def test_what_is_copied_is_there_and_not_ignored(path: Path) -> None:
    copied = [shlex.split(rest) for rest in given(path, "COPY") if not rest.startswith("--from=")]
    sources = [word for words in copied for word in words[:-1]]
    assert {"src", "scripts", "configs"} <= set(sources)
    assert [name for name in sources if not (ROOT / name).exists()] == []
    assert [name for name in sources if ignored(name)] == []


@pytest.mark.parametrize(
    "name", [".venv/bin/python", "runs/a/run.json", ".git/config", ".env", "data/x", "tests/a.py"]
)
def test_what_an_image_has_no_use_for_stays_out(name: str) -> None:
    assert ignored(name)


def test_only_the_image_of_megatron_compiles_and_for_the_cuda_of_the_lock() -> None:
    cuda = re.search(
        r"^cuda-toolkit(?:\[[^]]*\])?==(\d+)\.", (ROOT / "requirements-training.txt").read_text(), flags=re.M
    )
    megatron = ROOT / "docker" / "megatron" / "Dockerfile"
    assert cuda and f"nvidia/cuda:{cuda[1]}." in argument(megatron, "CUDA_IMAGE")


def test_the_image_of_megatron_has_the_scripts_of_the_release_that_its_lock_pins() -> None:
    """By a full commit, and without the folder `megatron`, which is imported from the compiled wheel."""
    path = ROOT / "docker" / "megatron" / "Dockerfile"
    assert re.fullmatch("[0-9a-f]{40}", argument(path, "MEGATRON_LM_COMMIT"))
    tag = re.search(r"the tag core_v([\d.]+):", path.read_text())
    lock = re.search(r"^megatron-core==(\S+)", (ROOT / "requirements-megatron.txt").read_text(), flags=re.M)
    assert tag and lock and tag[1] == lock[1]
    (fetching,) = [rest for rest in given(path, "RUN") if "$MEGATRON_LM_COMMIT" in rest]
    taken = fetching.partition("FETCH_HEAD -- ")[2].partition("&&")[0].split()
    assert {"pretrain_gpt.py", "gpt_builders.py", "model_provider.py"} <= set(taken)
    assert not [name for name in taken if name.startswith("megatron")]


def test_the_image_of_verl_has_what_verl_imports_but_does_not_require() -> None:
    """Its default trainer imports transfer_queue, which the metadata of verl 0.9.0 does not name."""
    lock = (ROOT / "requirements-verl.txt").read_text()
    assert re.search(r"^verl==0\.9\.0 ", lock, flags=re.M)
    assert re.search(r"^transferqueue==0\.1\.8 ", lock, flags=re.M)


def test_the_lock_of_megatron_has_the_torch_of_the_training_lock() -> None:
    """That of verl has the torch that its vLLM takes."""
    torch = {
        name: re.search(r"^torch==(\S+)", (ROOT / f"requirements-{name}.txt").read_text(), flags=re.M)
        for name in ("training", "megatron")
    }
    assert len({found[1] for found in torch.values() if found}) == 1 and all(torch.values())


def test_the_record_of_an_image_says_what_it_was_made_from(tmp_path: Path) -> None:
    lock = tmp_path / "requirements-training.txt"
    lock.write_text("torch==1\n")
    target = tmp_path / "image.json"
    environment = {"BASE_IMAGE": "ubuntu@sha256:1", "EFA_INSTALLER_VERSION": "1.49.0", "GIT_COMMIT": ""}
    script = ROOT / "docker" / "write_image_record.py"
    subprocess.run([sys.executable, script, target, "fsdp", lock], env=environment, check=True)
    found = json.loads(target.read_text())
    assert found["name"] == "fsdp" and found["base_image"] == "ubuntu@sha256:1"
    assert found["commit"] is None, "an unknown commit is not invented"
    assert found["locks"] == {lock.name: hashlib.sha256(b"torch==1\n").hexdigest()}
    assert "torch" in found["packages"]
    assert target.stat().st_mode & 0o777 == 0o444
