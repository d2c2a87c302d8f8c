"""Linting strangers' Dockerfiles: an error rests on what they state, and --fix changes nothing else.

Every base × every way to state torch, with locks beside the file. The expected errors are derived from what
each part states. Then files in public shapes, all of them valid.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.public_dockerfiles import FILES, HEALTHY

ROOT = Path(__file__).resolve().parents[2]
WHEELS = "https://download.pytorch.org/whl"
DLC = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training"
LOCKS_BESIDE = ("requirements-training.txt", "requirements-verl.txt")


@dataclass(frozen=True)
class Base:
    """A base image, and what its name states."""

    lines: str
    cuda: int = 0
    """The major release; 0 if it is not stated."""
    devel: bool = False
    torch: str = ""
    ngc: str = ""
    """The torch of an NGC image."""
    python: int = 0


BASES = {
    **{
        f"cuda {version} {kind}": Base(
            f"FROM nvidia/cuda:{version}-cudnn-{kind}-ubuntu22.04", int(version[:2]), kind == "devel"
        )
        for version in ("12.1.1", "12.4.1", "12.8.1", "13.0.1")
        for kind in ("devel", "runtime")
    },
    "pytorch 12.1": Base("FROM pytorch/pytorch:2.4.1-cuda12.1-cudnn9-devel", 12, devel=True),
    "pytorch 12.4": Base("FROM pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel", 12, devel=True, torch="2.6.0"),
    "pytorch 13.0": Base("FROM pytorch/pytorch:2.9.1-cuda13.0-cudnn9-devel", 13, devel=True),
    "python 3.11": Base("FROM python:3.11-slim-bookworm", python=11),
    "python 3.8": Base("FROM python:3.8-slim", python=8),
    "python 3.8 and uv": Base("FROM python:3.8-slim\nRUN uv venv --python 3.12 /venv"),
    "argument": Base("ARG BASE\nFROM ${BASE}"),
    "argument without ARG": Base("FROM $BASE"),
    "part of a name": Base("ARG X\nFROM own/base-${X}"),
    "tag": Base("ARG CUDA\nFROM nvidia/cuda:${CUDA}-devel-ubuntu22.04"),
    "default": Base("ARG BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04\nFROM ${BASE}", 13, devel=True),
    "parts": Base("ARG C=12.4.1\nARG O=22.04\nFROM nvidia/cuda:$C-devel-ubuntu$O", 12, devel=True),
    "own": Base("FROM 123456789012.dkr.ecr.us-west-2.amazonaws.com/team/base:7"),
    "dlc": Base(f"FROM {DLC}:2.6.0-gpu-py312-cu126-ubuntu22.04-ec2", 12, devel=True, torch="2.6.0"),
    "ngc 25.01": Base("FROM nvcr.io/nvidia/pytorch:25.01-py3", 12, devel=True, ngc="2.6"),
    "ngc 24.10": Base("FROM nvcr.io/nvidia/pytorch:24.10-py3", 12, devel=True, ngc="2.5"),
    "ngc unknown": Base("FROM nvcr.io/nvidia/pytorch:99.01-py3"),
    "stage": Base("FROM nvidia/cuda:13.0.1-devel-ubuntu24.04 AS base\nFROM base", 13, devel=True),
    "unused stage": Base("FROM python:3.8 AS docs\nRUN pip install torch==2.13.0\nFROM ubuntu:24.04"),
}


@dataclass(frozen=True)
class Stated:
    """The torch that is stated; empty is unknown."""

    version: str = ""
    cuda: str = ""


@dataclass(frozen=True)
class Torch:
    """A way to install torch, and what it states."""

    lines: str
    states: Stated = field(default_factory=Stated)
    """Stated by the commands themselves."""
    forgets: bool = False
    """Whether the commands install or remove a torch whose version they do not state."""
    suffix: bool = False
    """Whether CUDA is in the version instead of the index."""
    compiles: bool = False
    file: str = ""
    """The content of requirements.txt beside the Dockerfile."""
    reads: Stated | None = None
    """The torch that it states, if the Dockerfile copies it and installs from it."""
    ignore: str = ""
    stages: str = ""
    """Stages before the last."""


GOOD, WRONG = Stated("2.6", "12.4"), Stated("2.6", "12.1")
RIGHT = f"torch==2.6.0 --index-url {WHEELS}/cu124"
NO_BUILD = f"--index-url {WHEELS}/cu121\ntorch==2.6.0\n"
"""There is no torch 2.6.0 with CUDA 12.1."""
PAIR = "torch==2.6.0\ntorchvision==0.19.0\n"
READS = Torch("", file=NO_BUILD, reads=WRONG)
UNREAD = Torch("", file=NO_BUILD)
COMPILED = "RUN pip install flash-attn==2.7.4.post1 --no-build-isolation"
INSTALL = "RUN pip install -r requirements.txt"
TORCHES = {
    "none": Torch("RUN echo hello"),
    "bare": Torch("RUN pip install torch torchvision"),
    "range": Torch('RUN pip install "torch>=2.6,<2.7" torchvision==0.19.0'),
    "right": Torch(f"RUN pip install {RIGHT}", GOOD),
    "right, suffix": Torch("RUN pip3 install 'torch==2.6.0+cu124' -f x", GOOD, suffix=True),
    "right, argument": Torch(
        f"ARG T=2.6.0\nARG U={WHEELS}/cu124\nRUN uv pip install torch==${{T}} -i $U", GOOD
    ),
    "right, compiled": Torch(f"RUN pip install {RIGHT}\n{COMPILED}", GOOD, compiles=True),
    "no build": Torch(f"RUN pip install torch==2.6.0 --index-url {WHEELS}/cu121", WRONG),
    "no build, suffix": Torch("RUN pip install torch==2.6.0+cu121", WRONG, suffix=True),
    "pair": Torch(f"RUN pip install torchvision==0.19.0 {RIGHT}", GOOD),
    "pair, two commands": Torch(f"RUN pip install {RIGHT} && \\\n    pip install torchvision==0.19.0", GOOD),
    "version unknown": Torch("ARG T\nRUN pip install torch==${T} torchvision==0.19.0", forgets=True),
    "version never declared": Torch("RUN pip install torch==$T torchvision==0.19.0", forgets=True),
    "argument of no stage": Torch("RUN pip install torch==$GLOBAL torchvision==0.19.0", forgets=True),
    "index unknown": Torch(f"ARG CU\nRUN pip install torch==2.6.0 -i {WHEELS}/$CU", Stated("2.6")),
    "index computed": Torch(
        f'RUN pip install torch==2.6.0 --index-url "{WHEELS}/cu$(echo 12.1 | tr -d .)"', Stated("2.6")
    ),
    "index private": Torch("RUN pip install torch==2.6.0+cu121 -i https://own.io/simple", Stated("2.6")),
    "extra index": Torch(f"RUN pip install torch==2.6.0 --extra-index-url {WHEELS}/cu121", Stated("2.6")),
    "condition": Torch('RUN if [ "$A" = b ]; then pip install torch==2.6.0+cu121; fi', forgets=True),
    "test": Torch('RUN [ -n "$A" ] && pip install torch==2.6.0+cu121', forgets=True),
    "or": Torch("RUN pip install torch==2.6.0+cu121 || pip install torch", forgets=True),
    "removed": Torch("RUN pip install torch==2.6.0+cu121 && pip uninstall -y torch", forgets=True),
    "printed": Torch("RUN echo pip install torch==2.6.0+cu121"),
    "upgraded": Torch("RUN pip install torch==2.6.0+cu121\nRUN pip install -U torch", forgets=True),
    "url": Torch(
        "RUN pip install https://own.io/torch-2.6.0%2Bcu121-cp311-cp311-linux_x86_64.whl", forgets=True
    ),
    "file, copied": replace(READS, lines=f"COPY requirements.txt .\n{INSTALL}"),
    "file, right": replace(
        READS,
        lines="WORKDIR /app\nCOPY requirements.txt ./\nRUN pip install --no-cache -r /app/requirements.txt",
        file=f"# all\ntorch==2.6.0  # with CUDA 12.4\n--extra-index-url {WHEELS}/cu124\n",
        reads=GOOD,
    ),
    "file, pair": replace(
        READS,
        lines="ADD requirements.txt /r/x.txt\nRUN cd /r && python -m pip install -r x.txt && rm x.txt",
        file=PAIR,
        reads=Stated("2.6"),
    ),
    "file, folder": replace(READS, lines="WORKDIR /w\nCOPY . .\nRUN pip install -r ./requirements.txt"),
    "file, folder elsewhere": replace(READS, lines="COPY . /src/\nRUN pip install -r /src/requirements.txt"),
    "file, pattern": replace(READS, lines="COPY req*.txt /r/\nRUN pip install -r /r/requirements.txt"),
    "file, list": replace(
        READS, lines='COPY ["requirements.txt", "/r/"]\nRUN ["pip", "install", "-r", "/r/requirements.txt"]'
    ),
    "file, mount": replace(
        READS,
        lines="WORKDIR /w\n"
        "RUN --mount=type=bind,source=requirements.txt,target=r.txt uv pip install -r r.txt",
    ),
    "file, sync": replace(READS, lines="COPY requirements.txt /r/\nRUN uv pip sync /r/requirements.txt"),
    "file, through a stage": replace(
        UNREAD,
        stages="FROM own/a:1 AS files\nWORKDIR /x\nCOPY . .\n"
        "FROM own/b:1 AS between\nCOPY --from=files /x/requirements.txt /y\n",
        lines="COPY --from=between /y /z/r.txt\nRUN pip install -r /z/r.txt",
    ),
    "file, not copied": replace(UNREAD, lines=INSTALL),
    "file, another copied": replace(UNREAD, lines=f"COPY setup.py /app/\nWORKDIR /app\n{INSTALL}"),
    "file, not installed": replace(UNREAD, lines="COPY requirements.txt .\nRUN cat requirements.txt"),
    "file, changed": replace(
        UNREAD, lines=f"COPY requirements.txt .\nRUN sed -i /torch/d requirements.txt\n{INSTALL}"
    ),
    "file, written": replace(
        UNREAD, lines=f"COPY requirements.txt .\nRUN echo numpy > requirements.txt\n{INSTALL}"
    ),
    "file, ignored": replace(
        UNREAD, lines="COPY . /w\nRUN pip install -r /w/requirements.txt", ignore="*.txt\n"
    ),
    "file, of another image": replace(
        UNREAD, lines="COPY --from=own/tools:1 /requirements.txt /r/\nRUN pip install -r /r/requirements.txt"
    ),
    "file, name unknown": replace(UNREAD, lines="ARG R\nCOPY $R /r/\nRUN pip install -r /r/requirements.txt"),
    "file, markers": replace(
        READS,
        lines="COPY requirements.txt /\nRUN pip install -r /requirements.txt",
        file="torch==2.6.0+cu121 ; sys_platform == 'win32'\ntorchvision==0.19.0 ; python_version < '3.12'\n",
        reads=Stated(),
    ),
    "script": replace(UNREAD, lines="COPY . .\nRUN ./install.sh"),
    "conda": Torch("RUN conda install pytorch==2.6.0 pytorch-cuda=12.1 -c pytorch"),
}


def expected_errors(base: Base, torch: Torch) -> tuple[set[str], set[str]]:
    """Return the errors in what is stated, and those of them that --fix corrects."""
    first = torch.reads or Stated()
    own = torch.states
    version, cuda = (own.version, own.cuda) if own.version or torch.forgets else (first.version, first.cuda)
    # pip leaves a torch that the base has already, whatever index is named; NGC has 2.6.0a0.
    suffix = torch.suffix and own.version
    kept = bool(version) and base.torch == "2.6.0" and not suffix and not base.ngc
    found, fixable = set(), set()
    if version and cuda == "12.1" and not kept:
        found.add("torch-cuda")
        # With CUDA 13 in the base none of cu118, cu124 and cu126 fits.
        fixable |= {"torch-cuda"} if own.version and base.cuda != 13 else set()
    if version and base.python == 8 and "conda" not in torch.lines:
        found.add("torch-python")
    if version and base.ngc and "uninstall" not in torch.lines:
        found.add("torch-twice")
    if version and cuda and torch.compiles and base.devel and base.cuda != 12 and not kept:
        found.add("base-cuda")
    first_stage = [line for line in base.lines.splitlines() if line.startswith("FROM")][-1]
    known = re.match(r"FROM (?:python|nvidia/cuda|ubuntu|pytorch/)[^$]*$", first_stage)
    if torch.compiles and known and not base.devel:
        found.add("compiled")
    return found, fixable


@pytest.fixture
def lint(load_script: Callable[[str], Any], capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    script = load_script("image_lint")

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = script.main([*(() if "--index" in words else ("--index", "none")), *words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def errors(result: dict[str, Any]) -> set[str]:
    return {one["rule"] for one in result["findings"] if one["severity"] == "error"}


@pytest.mark.parametrize("base", BASES)
def test_an_error_rests_on_what_is_stated_and_the_fix_on_nothing_else(
    base: str, tmp_path: Path, lint: Callable[..., Any]
) -> None:
    locks = tmp_path / "locks"
    locks.mkdir()
    for lock in LOCKS_BESIDE:
        (locks / lock).write_bytes((ROOT / lock).read_bytes())
    for name, torch in TORCHES.items():
        folder = tmp_path / name
        folder.mkdir()
        file = folder / "Dockerfile"
        arguments, start, rest = BASES[base].lines.partition("FROM")
        text = f"ARG GLOBAL=2.6.0\n{arguments}{torch.stages}{start}{rest}\n{torch.lines}\nUSER 1000\n"
        file.write_text(text)
        if torch.file:
            (folder / "requirements.txt").write_text(torch.file)
        if torch.ignore:
            (folder / ".dockerignore").write_text(torch.ignore)
        for lock in LOCKS_BESIDE:
            (folder / lock).hardlink_to(locks / lock)
        words = ["--dockerfile", str(file)]
        case = (base, name)
        expected, fixable = expected_errors(BASES[base], torch)
        if fixable:
            code, result = lint(*words)
            assert (case, errors(result), code) == (case, expected, 1)
        code, result = lint(*words, "--fix")
        left = expected - fixable
        assert (case, errors(result), code) == (case, left, 1 if left else 0)
        assert (case, file.read_text() != text) == (case, bool(fixable))
        if fixable:
            assert lint(*words)[1]["findings"] == result["findings"], case


@pytest.mark.parametrize("value", ["nvidia/cuda:13.0.1-devel-ubuntu24.04", "python:3.8"])
def test_a_build_argument_states_what_the_file_does_not(
    value: str, tmp_path: Path, lint: Callable[..., Any]
) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(
        "ARG BASE\nFROM ${BASE}\nARG T\nARG CU\n"
        f"RUN pip install torch==${{T}} --index-url {WHEELS}/${{CU}}\n{COMPILED}\n"
    )
    words = ["--dockerfile", str(file)]
    code, result = lint(*words)
    assert (code, errors(result)) == (0, set())
    assert "base" not in result["declared"]
    assert any("${BASE}" in one for one in result["unknown"])
    given = {"BASE": value, "T": "2.6.0", "CU": "cu124"}
    options = [word for key, one in given.items() for word in ("--build-arg", f"{key}={one}")]
    code, result = lint(*words, *options)
    assert (code, errors(result)) == (
        1,
        ({"base-cuda"} if "cuda" in value else {"torch-python", "compiled"}),
    )
    assert result["unknown"] == []
    given["CU"] = "cu121"
    options = [word for key, one in given.items() for word in ("--build-arg", f"{key}={one}")]
    before = file.read_text()
    assert "torch-cuda" in errors(lint(*words, *options, "--fix")[1])
    assert file.read_text() == before, "what a build argument states is not in the file"


def test_a_base_without_a_value_is_shown_to_people(
    tmp_path: Path, load_script: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\nRUN pip install -r requirements.txt\n")
    assert load_script("image_lint").main(["--dockerfile", str(tmp_path / "Dockerfile")]) == 0
    shown = capsys.readouterr().out
    assert "base          unknown" in shown
    assert "unknown       the base image ${BASE}" in shown
    assert "requirements.txt (the build context here has no such file" in shown
    assert "nothing would break" not in shown


def test_the_context_is_the_working_directory_or_the_folder_of_the_file(
    tmp_path: Path, lint: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = tmp_path / "services" / "a"
    service.mkdir(parents=True)
    file = service / "Dockerfile"
    file.write_text("FROM python:3.11\nCOPY requirements.txt .\nRUN pip install -r requirements.txt\n")
    (tmp_path / "requirements.txt").write_text(NO_BUILD)
    words = ["--dockerfile", str(file)]
    monkeypatch.chdir(ROOT)
    assert errors(lint(*words)[1]) == set(), "a file outside of the context was read"
    assert errors(lint(*words, "--context", str(tmp_path))[1]) == {"torch-cuda"}
    monkeypatch.chdir(tmp_path)
    assert errors(lint(*words)[1]) == {"torch-cuda"}
    (service / "requirements.txt").write_text("torch==2.6.0\n")
    assert lint(*words, "--context", str(service))[1]["unknown"] == []
    monkeypatch.chdir(ROOT)
    file.write_text(
        "FROM python:3.8\nCOPY requirements-training.txt .\nRUN pip install -r requirements-training.txt\n"
    )
    assert errors(lint(*words)[1]) == set(), "it was judged by Trainyard's own lock"


@pytest.mark.parametrize("kind", ["fsdp", "verl", "megatron"])
def test_our_own_images_are_judged_by_their_own_locks(kind: str, lint: Callable[..., Any]) -> None:
    path = f"{ROOT}/docker/{kind}/Dockerfile"
    code, result = lint("--dockerfile", path, "--instance-type", "p5.48xlarge")
    assert (code, result["findings"], result["unknown"]) == (0, [], [])
    assert result["declared"]["cuda"] == "13.0"
    old = "nvidia/cuda:12.4.1-devel-ubuntu22.04"
    if kind == "megatron":
        code, result = lint("--dockerfile", path, "--build-arg", f"CUDA_IMAGE={old}")
        assert (code, errors(result)) == (1, {"base-cuda"})
    code, result = lint("--dockerfile", path, "--build-arg", "BASE_IMAGE=python:3.8")
    assert ("torch-python" in errors(result)) == (kind == "fsdp")
    assert errors(lint("--dockerfile", path, "--driver", "550.54")[1]) == {"driver"}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_file_of_public_shape_is_no_error_and_is_not_changed(
    name: str, tmp_path: Path, lint: Callable[..., Any]
) -> None:
    text = HEALTHY[name]
    for path, content in FILES.get(name, {}).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    file = tmp_path / "Dockerfile"
    file.write_text(text)
    for lock in LOCKS_BESIDE:
        (tmp_path / lock).write_bytes((ROOT / lock).read_bytes())
    for words in ([], ["--instance-type", "p5.48xlarge"], ["--instance-type", "p4d.24xlarge"]):
        code, result = lint("--dockerfile", str(file), *words, "--fix")
        assert (code, errors(result), result["difference"]) == (0, set(), ""), words
    assert file.read_text() == text
