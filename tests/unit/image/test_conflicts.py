"""Version conflicts: the findings on a Dockerfile and a lock, by machine, and the result of --fix.

Expected answers come from the same tables, read in another way: every pair is tried.
"""

import itertools
import re
from datetime import date, timedelta
from pathlib import Path

from tests.cases import each_case

from trainyard.image.conflict.base_choice import choose_base
from trainyard.image.conflict.base_images import base_image
from trainyard.image.conflict.conflict_fix import fix
from trainyard.image.conflict.conflict_rule import TargetMachine
from trainyard.image.conflict.container_rules import judge_versions
from trainyard.image.conflict.declared_versions import DeclaredVersions, declare
from trainyard.image.context.dockerfile import parse_dockerfile
from trainyard.image.version_facts import (
    MOST_DAYS,
    RENEWED,
    old_tables,
    oldest_driver,
    rows,
    rows_with,
    torch_builds,
    version,
    version_text,
)
from trainyard.plan.finding import Finding
from trainyard.plan.instances import CATALOGUE, GPUS

ROOT = Path(__file__).resolve().parents[3]
FACTS = ROOT / "src" / "trainyard" / "image" / "facts"
DIGEST = "@sha256:" + "a" * 64
CLEAN = f"FROM python:3.11-slim{DIGEST}\nUSER 1000\n"


DLC = "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.6.0-gpu-py312-cu126-ubuntu22.04"


def declared(text: str, lock: str = "") -> DeclaredVersions:
    """Return the versions of a Dockerfile whose last stage first installs the lock."""
    start, word, rest = text.rpartition("FROM ")
    line, _, rest = rest.partition("\n")
    install = "COPY lock.txt /\nRUN pip install -r /lock.txt\n" if lock else ""
    parsed = parse_dockerfile(f"{start}{word}{line}\n{install}{rest}", "Dockerfile")
    return declare(parsed, "Dockerfile", lambda paths: ("lock.txt", lock) if "lock.txt" in paths else None)


def findings(text: str, lock: str = "", machine: TargetMachine | None = None) -> list[Finding]:
    return judge_versions(declared(text, lock), machine or TargetMachine())


def rules(text: str, lock: str = "", machine: TargetMachine | None = None) -> set[str]:
    return {finding.rule for finding in findings(text, lock, machine)}


TORCH = {version(row["torch"]): row for row in rows_with("torch", "pypi_cuda")}
ARCHITECTURES = {row["architecture"]: version(row["cuda"]) for row in rows_with("cuda", "architecture")}
NGC = [row for row in rows_with("containers", "torch") if row["image"] == "nvcr.io/nvidia/pytorch"]


@each_case(("torch", "python"), list(itertools.product(TORCH, range(8, 16))))
def test_torch_wants_a_python_it_has_wheels_for(torch: tuple[int, ...], python: int) -> None:
    text = f"FROM python:3.{python}{DIGEST}\nUSER 1\n"
    oldest, newest = map(version, TORCH[torch]["python"])
    fits = oldest <= (3, python) <= newest
    assert ("torch-python" in rules(text, f"torch=={version_text(torch)}.0")) == (not fits)


BUILT = [torch for torch in TORCH if torch_builds(torch)]


@each_case("torch", BUILT)
@each_case("cuda", ["118", "121", "124", "126", "128", "129", "130", "132"])
def test_a_torch_with_this_cuda_must_exist(torch: tuple[int, ...], cuda: str) -> None:
    exists = (int(cuda[:2]), int(cuda[2:])) in torch_builds(torch)
    # cu128 and cu129 were built for later releases, too, although the matrix lacks them.
    exists = exists or (cuda == "128" and torch >= (2, 7)) or (cuda == "129" and torch >= (2, 8))
    pinned = f"{CLEAN}RUN pip install torch=={version_text(torch)}.0+cu{cuda}\n"
    index = f"{CLEAN}RUN pip install torch=={version_text(torch)}.0 --index-url https://download.pytorch.org/whl/cu{cuda}\n"
    assert [("torch-cuda" in rules(text)) for text in (pinned, index)] == [not exists] * 2
    after = fix(pinned, findings, file="Dockerfile")
    assert "torch-cuda" not in rules(after)


@each_case("architecture", ARCHITECTURES)
@each_case("cuda", ["11.0", "11.1", "11.8", "12.4", "12.8", "12.9", "13.0"])
def test_a_gpu_wants_a_cuda_that_knows_it(architecture: str, cuda: str) -> None:
    lock = f"torch==2.99.0\ncuda-toolkit=={cuda}.1\n"
    found = [f for f in findings(CLEAN, lock, TargetMachine(architecture)) if f.rule == "architecture"]
    enough = version(cuda) >= ARCHITECTURES[architecture]
    assert bool(found) == (not enough)
    if found:
        runs = architecture == "sm_103" and version(cuda) >= ARCHITECTURES["sm_100"]
        assert found[0].severity == ("warning" if runs else "error")
        assert (found[0].file, found[0].line) == ("lock.txt", 1)


def test_every_fact_has_a_source_and_a_date_and_a_family_past_its_date_is_named() -> None:
    for table in (one.stem for one in FACTS.glob("*.yaml")):
        assert all(row["source"] and date.fromisoformat(row["date"]) for row in rows(table)), table
    for table, key in RENEWED:
        newest = date.fromisoformat(max(row["date"] for row in rows_with(table, key)))
        name = f"{table} ({key})"
        assert name not in old_tables(newest + timedelta(days=MOST_DAYS))
        assert name in old_tables(newest + timedelta(days=MOST_DAYS + 1))


def test_every_gpu_of_the_catalogue_has_an_architecture() -> None:
    used = {one.architecture for one in CATALOGUE} | {one.architecture for one in GPUS}
    assert used <= set(ARCHITECTURES)


def test_cuda_wants_a_driver_that_is_new_enough() -> None:
    for major in (int(row["cuda"]) for row in rows_with("cuda", "driver")):
        lock, needed = f"torch==2.99.0\ncuda-toolkit=={major}.0\n", oldest_driver((major,))
        for driver, fits in ((needed, True), ((needed[0] + 1,), True), ((needed[0] - 1, 99), False)):
            assert ("driver" in rules(CLEAN, lock, TargetMachine(driver=driver))) == (not fits), major
        assert "driver" not in rules(CLEAN, lock)


def test_two_cuda_majors_in_one_environment_are_an_error() -> None:
    for suffix in ("11", "12", "13"):
        lock = f"torch==2.99.0\ncuda-toolkit==13.0.3\ntransformer-engine-cu{suffix}==2.9\n"
        assert ("cuda-suffix" in rules(CLEAN, lock)) == (suffix != "13")


@each_case(("tag", "torch"), [(row["tag"], row["torch"]) for row in NGC])
def test_replacing_the_torch_of_ngc_is_an_error(tag: str, torch: str) -> None:
    text = f"FROM nvcr.io/nvidia/pytorch:{tag}-py3{DIGEST}\nUSER 1\n"
    assert "torch-twice" not in rules(text)
    # NGC has a development version of that release, which is not equal to it.
    for pin in (f"{torch}.0", "2.99.0"):
        found = [f for f in findings(text, f"torch=={pin}") if f.rule == "torch-twice"]
        assert [f.severity for f in found] == ["error"]


def test_another_cuda_in_the_base_breaks_what_is_compiled_there() -> None:
    lock = "torch==2.13.0\ncuda-toolkit==13.0.3\nflash-attn==2.8.3\n"
    for base, severities in (
        ("12.4.1-devel-ubuntu22.04", ["error"]),
        ("12.4.1-runtime-ubuntu22.04", []),
        ("13.0.1-devel", []),
    ):
        text = f"FROM nvidia/cuda:{base}{DIGEST}\nUSER 1\n"
        assert [f.severity for f in findings(text, lock) if f.rule == "base-cuda"] == severities


@each_case(
    ("image", "kind", "torch", "cuda", "python"),
    [
        ("pytorch/pytorch:2.5.1-cuda12.4-cudnn9-devel", "pytorch", "2.5.1", "12.4", ""),
        (f"docker.io/pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime{DIGEST}", "pytorch", "2.8.0", "12.8", ""),
        ("nvcr.io/nvidia/pytorch:25.01-py3", "ngc", "2.6", "12.8", "3.12"),
        ("nvcr.io/nvidia/pytorch:99.01-py3", "ngc", "", "", ""),
        ("nvidia/cuda:12.8.1-cudnn-devel-ubuntu22.04", "cuda", "", "12.8", ""),
        (f"{DLC}-ec2", "dlc", "2.6.0", "12.6", "3.12"),
        ("python:3.11-slim-bookworm", "python", "", "", "3.11"),
        ("localhost:5000/own/base:1", "other", "", "", ""),
        ("debian", "system", "", "", ""),
        ("own.io/debian-torch", "other", "", "", ""),
        ("nvidia/cuda:12.4.1-cudnn-devel-ubuntu${V}", "cuda", "", "12.4", ""),
        ("nvidia/cuda:12.${MINOR}-devel", "cuda", "", "", ""),
        ("python:3.1${X}", "python", "", "", ""),
        ("pytorch/pytorch:${TORCH}-cuda12.4-cudnn9-devel", "pytorch", "", "", ""),
        ("base-${X}", "other", "", "", ""),
    ],
)
def test_the_name_of_a_base_image_tells_its_versions(
    image: str, kind: str, torch: str, cuda: str, python: str
) -> None:
    base = base_image(image)
    found = (base.kind, *map(version_text, (base.torch, base.cuda, base.python)))
    assert found == (kind, torch, cuda, python)


EFA = f"{CLEAN}RUN curl -O https://x/aws-efa-installer-%s.tar.gz && make -C aws-ofi-nccl-%s\nUSER 1\n"


def test_p5_wants_a_recent_efa() -> None:
    machine = TargetMachine("sm_90", efa=True, rdma=True, family="p5")
    for installer, plugin, says in (
        ("1.28.0", "1.9.1", True),
        ("1.29.0", "1.7.2", True),
        ("1.38.0", "1.14.0", False),
        ("1.9.5", "1.9", True),
    ):
        found = rules(EFA % (installer, plugin), "", machine)
        assert (("efa-versions" in found), ("efa-missing" in found)) == (says, False), installer
    assert "efa-missing" in rules(CLEAN, "", machine)
    assert "efa-missing" not in rules(CLEAN, "", TargetMachine("sm_86", efa=False, family="g5"))


def test_the_rdma_variable_is_judged_for_the_machine() -> None:
    unknown = {"1": ["warning"], "0": ["warning"]}
    by_rdma: dict[bool | None, dict[str, list[str]]] = {None: unknown}
    by_rdma |= {True: {"1": [], "0": ["error"]}, False: {"1": ["error"], "0": []}}
    for instance, value in itertools.product(CATALOGUE, "01"):
        machine = TargetMachine(efa=instance.efa > 0, rdma=instance.rdma, instance=instance)
        text = f"{CLEAN}ENV FI_EFA_USE_DEVICE_RDMA={value}\n"
        found = [f.severity for f in findings(text, "", machine) if f.rule == "environment"]
        assert found == (by_rdma[machine.rdma] if machine.efa else unknown)[value], (instance, value)


def test_what_is_only_to_consider_is_not_changed() -> None:
    """With an older plugin, another network or a script that reads it, the variable is right."""
    names = ("FI_PROVIDER", "NCCL_PROTO", "NCCL_TIMEOUT", "NCCL_BLOCKING_WAIT", "NCCL_P2P_DISABLE")
    for name in (*names, "CUDA_LAUNCH_BLOCKING", "RDMAV_FORK_SAFE"):
        text = f"FROM scratch\nENV {name}=1\nUSER 1\n"
        assert [f.severity for f in findings(text)] == ["warning"], name
        assert fix(text, findings, file="Dockerfile") == text


def test_each_habit_that_harms_is_named_with_its_line() -> None:
    habits = {
        "ENV HF_TOKEN=x": "secret",
        "USER root": "user",
        "USER 0:0": "user",
        "ENV CUDA_LAUNCH_BLOCKING=1": "environment",
        "ENV NCCL_NVLS_ENABLE=0": "environment",
        "RUN pip install flash-attn==2.8.3": "compiled",
    }
    for line, rule in habits.items():
        found = [f for f in findings(f"{CLEAN}{line}\n") if f.rule == rule]
        assert [(f.line, f.file) for f in found] == [(3, "Dockerfile")], line
        assert all((f.subject, f.evidence, f.fix) for f in found)


@each_case(
    ("line", "severity"),
    [
        ("ENV HF_TOKEN=hf_x", "error"),
        ("ARG PASSWORD=1234", "error"),
        ("ARG HF_TOKEN", "warning"),
        ("ARG HF_TOKEN=", "warning"),
        ("ARG PASSWORD=$uper9", "warning"),
        ("ARG HF_TOKEN=${OTHER:-}", "warning"),
        ("ARG PASSWORD=a$b", "error"),
        ("ARG HF_TOKEN\nENV HF_TOKEN=$HF_TOKEN", "error,warning"),
        ("ENV A=1 WANDB_API_KEY=${KEY}", "error"),
        ("ENV INDEX=https://user:${GITHUB_TOKEN}@a.b/simple", "error"),
        ("ENV PASSWORD=$uper9", "error"),
        ("ENV LENGTH=$MAX_TOKENS PAD=$PAD_TOKEN", ""),
        ("ENV HF_TOKEN=/run/secrets/hf", ""),
        ("ENV PATH=/opt/bin:$PATH", ""),
        ("ENV HF_TOKEN=", ""),
        ('ENV WANDB_API_KEY=""', ""),
        ("ARG NUM_TOKENS_PER_BATCH=8", ""),
    ],
)
def test_a_secret_is_one_by_its_name_and_its_value(line: str, severity: str) -> None:
    found = {f.severity for f in findings(f"{CLEAN}{line}\n") if f.rule == "secret"}
    assert found == set(severity.split(",")) - {""}


@each_case("torch", ["torch==2.99.0\n", "torch>=2.4\n", "torch\n", ""])
@each_case(
    "package", ["nvidia-cuda-runtime-cu11==11.8.89", "nvidia-cuda-runtime==11.8.89", "cuda-toolkit==11.8.0"]
)
def test_a_package_of_cuda_says_nothing_of_a_torch_that_is_not_stated(torch: str, package: str) -> None:
    pinned = "==" in torch
    found = declared(CLEAN, f"{torch}{package}\n")
    assert found.cuda == ((11, 8) if pinned else ())
    blackwell = rules(CLEAN, f"{torch}{package}\n", TargetMachine("sm_100"))
    assert ("architecture" in blackwell) is pinned


CUDA_BASE = f"FROM nvidia/cuda:12.4.1-runtime-ubuntu22.04{DIGEST}\n"


@each_case(
    ("more", "keeps"),
    [
        ("", False),
        ("RUN pip install numpy==2.1.0", False),
        ("RUN pip install xformers", True),
        ("RUN pip install 'xformers>=0.0.28'", True),
        ("RUN pip install -r missing.txt", True),
        ("RUN pip install $EXTRA", True),
        ("RUN pip install ./own", True),
    ],
)
@each_case("locked", [False, True])
def test_another_base_is_only_proposed_where_everything_on_it_is_stated(
    locked: bool, more: str, keeps: bool
) -> None:
    install = "" if locked else "RUN pip install torch==2.6.0\n"
    found = declared(f"{CUDA_BASE}{install}{more}\n", "torch==2.6.0\n" if locked else "")
    assert choose_base(found, efa=False)[0] == (found.base.image if keeps else "python:3.12-slim-bookworm")


def test_a_tag_is_named_and_a_stage_is_not() -> None:
    text = f"FROM python:3.11 AS build\nFROM python:3.11-slim{DIGEST}\nCOPY --from=build /a /a\nUSER 1\n"
    assert [(f.rule, f.line) for f in findings(text)] == [("unpinned", 1)]
    assert findings(f"FROM python:3.11{DIGEST} AS build\nFROM build\nUSER 1\n") == []


def test_flash_attention_3_is_for_hopper() -> None:
    lock = "flash-attn-3==3.0.0\n"
    for architecture in ARCHITECTURES:
        assert ("flash-attn" in rules(CLEAN, lock, TargetMachine(architecture))) == (architecture != "sm_90")


def test_the_architectures_of_extensions_include_the_machines() -> None:
    for listed, architecture, says in (
        ("8.0;9.0", "sm_90", False),
        ("8.0", "sm_90", True),
        ("8.0", "sm_86", False),
        ("8.0+PTX", "sm_90", False),
        ("9.0", "sm_100", True),
        ("10.0", "sm_103", False),
    ):
        text = f"{CLEAN}ENV TORCH_CUDA_ARCH_LIST={listed}\n"
        assert ("arch-list" in rules(text, "", TargetMachine(architecture))) == says, (listed, architecture)


def test_a_base_with_torch_is_proposed_only_where_something_needs_it() -> None:
    for package, efa, proposed in (
        ("requests", True, "python:"),
        ("numpy", True, "python:"),
        ("transformers", True, "763104351884.dkr.ecr."),
        ("megatron-core", True, "nvcr.io/nvidia/pytorch:2"),
        ("megatron-core", False, "nvcr.io/nvidia/pytorch:2"),
        ("transformers", False, "python:"),
    ):
        image, _ = choose_base(declared(f"{CLEAN}RUN pip install {package}==1.0\n"), efa=efa)
        assert image.startswith(proposed), package
        assert not re.search(r"YY|VERSION|REGION|\.x", image)


@each_case(
    ("base", "more", "proposed"),
    [
        ("python:3.11-slim", "", "python:3.11-bookworm"),
        ("python:3.11-slim", "RUN apt-get install -y gcc python3-dev\n", ""),
        ("python:3.11", "", ""),
        ("nvidia/cuda:12.8.1-runtime-ubuntu24.04", "", "python:3.12-bookworm"),
    ],
)
def test_packages_that_compile_at_run_time_get_a_compiler(base: str, more: str, proposed: str) -> None:
    found = declared(f"FROM {base}{DIGEST}\n{more}RUN pip install torch==2.8.0 vllm==0.11.0\nUSER 1\n")
    assert choose_base(found, efa=False)[0] == (proposed or found.base.image)


def test_a_base_with_efa_stays_one() -> None:
    for text in (f"FROM {DLC}\nRUN pip install torch==2.6.0\nUSER 1\n", f"FROM {DLC}\nUSER 1\n"):
        assert choose_base(declared(text), efa=True)[0] == DLC


def test_the_locks_of_this_repository_hold_no_conflict() -> None:
    base = CLEAN.replace("3.11", "3.12")
    for kind in ("training", "megatron", "verl"):
        text = (ROOT / f"requirements-{kind}.txt").read_text()
        assert [f for f in findings(base, text) if f.severity == "error"] == []
        torch = declared(base, text).torch
        assert torch and torch.version[:2] in TORCH, "the table has no row for the torch of the lock"
