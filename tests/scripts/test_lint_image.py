"""Linting strangers' Dockerfiles: an error rests on what they state, and --fix changes nothing else.

Every way to state torch, with locks beside the file, on a base that fits and on one that is too old for any
torch that is known. Then files in public shapes, all of them valid.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.conftest import ROOT, load_script

from trainyard.errors import ConfigError

WHEELS = "https://download.pytorch.org/whl"
LOCKS_BESIDE = ("requirements-training.txt", "requirements-verl.txt")


FITS, TOO_OLD = "nvidia/cuda:12.4.1-cudnn-devel-ubuntu22.04", "python:3.8-slim"


@dataclass(frozen=True)
class Torch:
    """A way to install torch, and what it states."""

    lines: str
    is_known: bool = False
    """Whether the version of torch is stated in the end."""
    is_wrong: bool = False
    """Whether it is a build that does not exist: torch 2.6.0 with CUDA 12.1."""
    is_fixable: bool = False
    """Whether that is stated in the Dockerfile."""
    file: str = ""
    """The content of requirements.txt beside the Dockerfile."""
    ignore: str = ""
    stages: str = ""
    """Stages before the last."""


RIGHT = f"torch==2.6.0 --index-url {WHEELS}/cu124"
NO_BUILD = f"--index-url {WHEELS}/cu121\ntorch==2.6.0\n"
"""There is no torch 2.6.0 with CUDA 12.1."""
PAIR = "torch==2.6.0\ntorchvision==0.19.0\n"
READS = Torch("", is_known=True, is_wrong=True, file=NO_BUILD)
UNREAD = Torch("", file=NO_BUILD)
COMPILED = "RUN pip install flash-attn==2.7.4.post1 --no-build-isolation"
INSTALL = "RUN pip install -r requirements.txt"
TORCHES = {
    "none": Torch("RUN echo hello"),
    "bare": Torch("RUN pip install torch torchvision"),
    "range": Torch('RUN pip install "torch>=2.6,<2.7" torchvision==0.19.0'),
    "right": Torch(f"RUN pip install {RIGHT}", is_known=True),
    "right, suffix": Torch("RUN pip3 install 'torch==2.6.0+cu124' -f x", is_known=True),
    "right, argument": Torch(
        f"ARG T=2.6.0\nARG U={WHEELS}/cu124\nRUN uv pip install torch==${{T}} -i $U", is_known=True
    ),
    "right, compiled": Torch(f"RUN pip install {RIGHT}\n{COMPILED}", is_known=True),
    "no build": Torch(
        f"RUN pip install torch==2.6.0 --index-url {WHEELS}/cu121",
        is_known=True,
        is_wrong=True,
        is_fixable=True,
    ),
    "no build, suffix": Torch(
        "RUN pip install torch==2.6.0+cu121", is_known=True, is_wrong=True, is_fixable=True
    ),
    "pair": Torch(f"RUN pip install torchvision==0.19.0 {RIGHT}", is_known=True),
    "pair, two commands": Torch(
        f"RUN pip install {RIGHT} && \\\n    pip install torchvision==0.19.0", is_known=True
    ),
    "version unknown": Torch("ARG T\nRUN pip install torch==${T} torchvision==0.19.0"),
    "argument of no stage": Torch("RUN pip install torch==$GLOBAL torchvision==0.19.0"),
    "index unknown": Torch(f"ARG CU\nRUN pip install torch==2.6.0 -i {WHEELS}/$CU", is_known=True),
    "index computed": Torch(
        f'RUN pip install torch==2.6.0 --index-url "{WHEELS}/cu$(echo 12.1 | tr -d .)"', is_known=True
    ),
    "index private": Torch("RUN pip install torch==2.6.0+cu121 -i https://own.io/simple", is_known=True),
    "extra index": Torch(f"RUN pip install torch==2.6.0 --extra-index-url {WHEELS}/cu121", is_known=True),
    "condition": Torch('RUN if [ "$A" = b ]; then pip install torch==2.6.0+cu121; fi'),
    "test": Torch('RUN [ -n "$A" ] && pip install torch==2.6.0+cu121'),
    "or": Torch("RUN pip install torch==2.6.0+cu121 || pip install torch"),
    "removed": Torch("RUN pip install torch==2.6.0+cu121 && pip uninstall -y torch"),
    "printed": Torch("RUN echo pip install torch==2.6.0+cu121"),
    "upgraded": Torch("RUN pip install torch==2.6.0+cu121\nRUN pip install -U torch"),
    "url": Torch("RUN pip install https://own.io/torch-2.6.0%2Bcu121-cp311-cp311-linux_x86_64.whl"),
    "file, copied": replace(READS, lines=f"COPY requirements.txt .\n{INSTALL}"),
    "file, right": replace(
        READS,
        lines="WORKDIR /app\nCOPY requirements.txt ./\nRUN pip install --no-cache -r /app/requirements.txt",
        file=f"# all\ntorch==2.6.0  # with CUDA 12.4\n--extra-index-url {WHEELS}/cu124\n",
        is_wrong=False,
    ),
    "file, pair": replace(
        READS,
        lines="ADD requirements.txt /r/x.txt\nRUN cd /r && python -m pip install -r x.txt && rm x.txt",
        file=PAIR,
        is_wrong=False,
    ),
    "file, folder": replace(READS, lines="WORKDIR /w\nCOPY . .\nRUN pip install -r ./requirements.txt"),
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
        is_known=False,
        is_wrong=False,
    ),
    "script": replace(UNREAD, lines="COPY . .\nRUN ./install.sh"),
    "conda": Torch("RUN conda install pytorch==2.6.0 pytorch-cuda=12.1 -c pytorch"),
}


@pytest.fixture
def lint(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    script = load_script("image_lint")

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = script.main([*(() if "--index" in words else ("--index", "none")), *words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def errors(result: dict[str, Any]) -> set[str]:
    return {one["rule"] for one in result["findings"] if one["severity"] == "error"}


@pytest.mark.parametrize("base", [FITS, TOO_OLD])
def test_an_error_rests_on_what_is_stated_and_the_fix_on_nothing_else(
    base: str, tmp_path: Path, lint: Callable[..., Any]
) -> None:
    wrong = []
    for name, torch in TORCHES.items():
        folder = tmp_path / name
        folder.mkdir()
        file = folder / "Dockerfile"
        text = f"ARG GLOBAL=2.6.0\n{torch.stages}FROM {base}\n{torch.lines}\nUSER 1000\n"
        file.write_text(text)
        (folder / "requirements.txt").write_text(torch.file)
        (folder / ".dockerignore").write_text(torch.ignore)
        for lock in LOCKS_BESIDE:
            (folder / lock).write_bytes((ROOT / lock).read_bytes())
        expected = {"torch-cuda"} if torch.is_wrong else set()
        expected |= {"torch-python"} if torch.is_known and base == TOO_OLD else set()
        expected |= {"compiled"} if "flash-attn" in torch.lines and base == TOO_OLD else set()
        left = expected - ({"torch-cuda"} if torch.is_fixable else set())
        code, result = lint("--dockerfile", str(file))
        fixed_code, fixed = lint("--dockerfile", str(file), "--fix")
        found = (errors(result), code, errors(fixed), fixed_code, file.read_text() != text)
        if found != (expected, bool(expected), left, bool(left), torch.is_fixable):
            wrong.append((name, *found))
    assert not wrong


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
    assert (code, errors(result)) == (1, ({"base-cuda"} if "cuda" in value else {"torch-python", "compiled"}))
    assert result["unknown"] == []
    given["CU"] = "cu121"
    options = [word for key, one in given.items() for word in ("--build-arg", f"{key}={one}")]
    before = file.read_text()
    assert "torch-cuda" in errors(lint(*words, *options, "--fix")[1])
    assert file.read_text() == before, "what a build argument states is not in the file"


def test_a_base_without_a_value_is_shown_to_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
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


def test_the_stage_that_is_built_is_judged_and_the_others_are_named(
    tmp_path: Path, lint: Callable[..., Any]
) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(
        f"FROM python:3.11 AS build\nRUN pip install torch==2.6.0 --index-url {WHEELS}/cu121\nFROM scratch\n"
    )
    words = ["--dockerfile", str(file)]
    code, result = lint(*words)
    assert (code, errors(result)) == (0, set())
    assert any("stages that are not checked (build)" in each for each in result["unknown"])
    code, result = lint(*words, "--target", "build")
    assert (code, errors(result)) == (1, {"torch-cuda"})
    with pytest.raises(ConfigError, match=r"--target runtime: .* no such stage \(build\)"):
        lint(*words, "--target", "runtime")


@pytest.mark.parametrize("kind", ["fsdp", "verl", "megatron"])
def test_our_own_images_are_judged_by_their_own_locks(kind: str, lint: Callable[..., Any]) -> None:
    path = f"{ROOT}/docker/{kind}/Dockerfile"
    code, result = lint("--dockerfile", path, "--instance-type", "p5.48xlarge")
    assert (code, result["findings"], result["unknown"]) == (0, [], [])
    assert result["declared"]["cuda"] == ("13.0" if kind == "verl" else "13.2")
    old = "nvidia/cuda:12.4.1-devel-ubuntu22.04"
    if kind == "megatron":
        code, result = lint("--dockerfile", path, "--build-arg", f"CUDA_IMAGE={old}")
        assert (code, errors(result)) == (1, {"base-cuda"})
    code, result = lint("--dockerfile", path, "--build-arg", "BASE_IMAGE=python:3.8")
    assert ("torch-python" in errors(result)) == (kind == "fsdp")
    assert errors(lint("--dockerfile", path, "--driver", "550.54")[1]) == {"driver"}


def test_a_healthy_file_of_public_shape_is_no_error_and_is_not_changed(
    tmp_path: Path, lint: Callable[..., Any]
) -> None:
    wrong = []
    for source in sorted((ROOT / "tests" / "fixtures" / "dockerfiles" / "healthy").iterdir()):
        folder = shutil.copytree(source, tmp_path / source.name)
        for lock in LOCKS_BESIDE:
            (folder / lock).write_bytes((ROOT / lock).read_bytes())
        for words in ([], ["--instance-type", "p5.48xlarge"], ["--instance-type", "p4d.24xlarge"]):
            code, result = lint("--dockerfile", str(folder / "Dockerfile"), *words, "--fix")
            if (code, errors(result), result["difference"]) != (0, set(), ""):
                wrong.append((source.name, words, errors(result), result["difference"]))
    assert not wrong
