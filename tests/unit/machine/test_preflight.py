# ruff: noqa: E501 - a case of a table is one line
"""The judgement of given facts: no test asks a driver, torch or a disk."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from tests.cases import each_case
from tests.unit.plan.conftest import TINYLLAMA

from trainyard.config.parameters import count_parameters
from trainyard.config.schema import ArchitectureConfig, Config
from trainyard.gateways.nvidia import GpuReading
from trainyard.machine import preflight
from trainyard.plan.finding import Finding, Severity
from trainyard.run.sizes import format_size

GB = 10**9
CPU_BOX = preflight.MachineFacts(
    python="3.11.7",
    torch="2.13.0",
    torch_cuda="13.0",
    torch_gpu_bytes=(),
    gpus=(),
    gpu_trouble=None,
    disk="runs",
    disk_free_bytes=71 * GB,
    lock_differences=(),
)
GPU_BOX = replace(
    CPU_BOX,
    gpus=(GpuReading(0, "NVIDIA H100 80GB HBM3", driver="580.65.06"),),
    torch_gpu_bytes=(80 * GB,),
    disk_free_bytes=900 * GB,
)


def config(device: str = "auto", shape: ArchitectureConfig | None = None, **training: Any) -> Config:
    return Config.model_validate(
        {
            "model": {
                "name": "a-model",
                "device": device,
                "architecture": (shape or ArchitectureConfig()).model_dump(),
            },
            "training": {"max_steps": 10, "warmup_steps": 0, **training},
        }
    )


def finding(findings: tuple[Finding, ...], check: str) -> Finding:
    return next(f for f in findings if f.subject == check)


def failed_checks(findings: tuple[Finding, ...]) -> list[str]:
    return [f.subject for f in findings if f.severity == Severity.ERROR]


def old(driver: str, cuda: str, **more: Any) -> preflight.MachineFacts:
    return replace(GPU_BOX, gpus=(GpuReading(0, "NVIDIA A10G", driver=driver),), torch_cuda=cuda, **more)


UNUSABLE = replace(GPU_BOX, torch_gpu_bytes=())
TWO = replace(GPU_BOX, torch_gpu_bytes=(1 * GB, 80 * GB))
NO_TORCH = replace(CPU_BOX, torch=None, torch_cuda=None)
WRONG = tuple(f"package-{i} 1.0 instead of 2.0" for i in range(7))
TROUBLE = 'nvidia-smi answered "ERR!, 580.65.06, 81559, 34"'
GOOD: tuple[tuple[str, preflight.MachineFacts], ...] = (
    *(("auto", CPU_BOX), ("cpu", CPU_BOX), ("cpu", GPU_BOX), ("auto", GPU_BOX), ("cuda", GPU_BOX)),
    *(("cuda:0", GPU_BOX), ("cuda:1", TWO), ("cpu", replace(GPU_BOX, gpu_trouble="ERR!"))),
    *(("cpu", replace(CPU_BOX, python=python)) for python in ("3.11.0", "3.12.9", "3.13.1+")),
    *(("cuda:0", old(*each)) for each in (("580.65.06", "13.0"), ("525.60.13", "12.9"), ("1.0", "99.0"))),
)
BAD: tuple[tuple[str, str, preflight.MachineFacts, str, str], ...] = (
    *(
        ("cpu", "python", replace(CPU_BOX, python=python), f"{python}, but the lock is resolved for 3.11 to 3.13", "")
        for python in ("3.10.14", "3.14.0", "2.7.18", "4.0.0")
    ),
    ("cpu", "packages", replace(CPU_BOX, lock_differences=WRONG), "package-4 1.0 instead of 2.0 and 2 more", "make install"),
    ("cpu", "torch", NO_TORCH, "cannot be imported", "make install"),
    *((each, "gpu", CPU_BOX, f"model.device is {each}", "--set model.device=cpu") for each in ("cuda", "cuda:0", "cuda:3")),
    ("cuda:0", "gpu", old("535.183.01", "13.0"), "driver 535.183.01 is too old for torch 2.13.0, built for CUDA 13.0", "driver 580 or"),
    ("cuda:0", "gpu", old("470.82.01", "12.6"), "470.82.01 is too old", "driver 525 or newer"),
    ("cuda:0", "gpu", old("418.87.00", "11.8"), "418.87.00 is too old", "driver 450 or newer"),
    ("cuda:0", "gpu", replace(GPU_BOX, gpus=(), gpu_trouble=TROUBLE), TROUBLE, "reset the GPU"),
    ("cuda:0", "gpu", replace(UNUSABLE, torch_cuda=None), "torch 2.13.0 is a build for the CPU only", "make install"),
    ("cuda:0", "gpu", UNUSABLE, "torch cannot use any of it", "CUDA_VISIBLE_DEVICES"),
    ("cuda:1", "gpu", GPU_BOX, "model.device is cuda:1, but torch finds 1 GPU(s)", "--set model.device=cuda:0"),
    (
        "cuda:0", "gpu memory", replace(GPU_BOX, torch_gpu_bytes=(16 * GB,)),
        "16.0 GB, but a-model needs at least 19.7 GB (1,100 M parameters, batch 4)", "larger GPU",
    ),
    ("cuda:0", "gpu memory", TWO, "1.0 GB, but a-model needs at least", "larger GPU"),
)  # fmt: skip


@each_case(("device", "facts"), GOOD)
def test_a_machine_that_fits_passes_every_check(device: str, facts: preflight.MachineFacts) -> None:
    findings = preflight.judge_machine(config(device, TINYLLAMA if "cuda" in device else None), facts)
    assert preflight.worst_severity(findings) == Severity.PASSED
    assert {f.fix for f in findings} == {""}


@each_case(("device", "check", "facts", "found", "fix"), BAD)
def test_a_machine_that_does_not_fit_is_refused_with_what_is_wrong_and_its_fix(
    device: str, check: str, facts: preflight.MachineFacts, found: str, fix: str
) -> None:
    findings = preflight.judge_machine(config(device, TINYLLAMA if check == "gpu memory" else None), facts)
    assert failed_checks(findings) == [check]
    bad = finding(findings, check)
    assert found in bad.evidence and bad.fix is not None and fix in bad.fix


def test_with_auto_an_unusable_gpu_is_reported_but_the_cpu_may_train() -> None:
    no_driver: dict[str, Any] = {"gpu_trouble": "nvidia-smi failed (exit code 9): no driver", "gpus": ()}
    old_driver = {"gpus": (GpuReading(0, "NVIDIA A10G", driver="470.1"),)}
    for broken in (no_driver, old_driver, {"torch_cuda": None}, {}):
        findings = preflight.judge_machine(config("auto"), replace(UNUSABLE, **broken))
        assert finding(findings, "gpu").severity == Severity.WARNING
        assert preflight.worst_severity(findings) == Severity.WARNING


def test_the_need_for_gpu_memory_is_computed_from_the_shape() -> None:
    small = config(shape=ArchitectureConfig(), batch_size=2)
    half = small.model_copy(update={"model": small.model.model_copy(update={"dtype": "bfloat16"})})
    parameters, logits = count_parameters(ArchitectureConfig()).total, 2 * 2048 * 256
    assert preflight.gpu_bytes_needed(small) == 16 * parameters + 8 * logits
    assert preflight.gpu_bytes_needed(half) == 16 * parameters + 4 * logits


def test_a_full_disk_is_refused_with_the_folder_and_both_figures() -> None:
    findings = preflight.judge_machine(config("cuda:0", TINYLLAMA), replace(GPU_BOX, disk_free_bytes=9 * GB))
    assert failed_checks(findings) == ["disk"]
    assert finding(findings, "disk").evidence.startswith(
        "9.0 GB free at runs, but 79.2 GB are needed (6 checkpoints"
    )


def test_the_need_for_disk_counts_one_more_checkpoint_than_are_kept_and_the_permanent_ones() -> None:
    checkpoint = 12 * count_parameters(ArchitectureConfig()).total
    assert preflight.disk_bytes_needed(config()) == 6 * checkpoint
    longer = config(max_steps=5000)
    saving = longer.checkpointing.model_copy(update={"keep_every": 2000})
    assert (
        preflight.disk_bytes_needed(longer.model_copy(update={"checkpointing": saving}))
        == (6 + 2) * checkpoint
    )


def test_all_problems_are_reported_at_once() -> None:
    wrong = ("torch 2.0 instead of 2.13.0",)
    facts = replace(NO_TORCH, python="3.10.1", lock_differences=wrong, disk_free_bytes=0)
    findings = preflight.judge_machine(config("cuda:0"), facts)
    assert failed_checks(findings) == ["python", "packages", "torch", "gpu", "disk"]
    text = preflight.refusal_text(findings)
    assert text.count("  fix: ") == 5
    assert text.endswith("5 checks failed. Nothing was started.")


@pytest.mark.parametrize(
    ("device", "facts", "line"),
    [
        ("cuda:0", CPU_BOX, "Python 3.11.7, torch 2.13.0, no usable GPU, 71.0 GB free"),
        ("cpu", GPU_BOX, "Python 3.11.7, torch 2.13.0, no GPU (training on CPU), 900.0 GB free"),
        (
            "auto",
            GPU_BOX,
            "Python 3.11.7, torch 2.13.0, 1 × NVIDIA H100 80GB HBM3 (driver 580.65.06), 900.0 GB free",
        ),
        ("auto", replace(GPU_BOX, gpus=(), torch=None), "Python 3.11.7, no torch, 1 GPU(s), 900.0 GB free"),
    ],
)
def test_the_summary_is_one_line(device: str, facts: preflight.MachineFacts, line: str) -> None:
    assert preflight.summarize_machine(config(device), facts) == line


def test_a_compiler_is_required_only_if_the_configuration_compiles() -> None:
    given = config("cuda:0", TINYLLAMA)
    for compiles, missing in product((True, False), ((), ("gcc or clang",), ("g++", "Python's headers"))):
        compute = given.compute.model_copy(update={"compile": compiles})
        facts = replace(GPU_BOX, missing_for_compiling=missing)
        findings = preflight.judge_machine(given.model_copy(update={"compute": compute}), facts)
        assert (preflight.worst_severity(findings) == Severity.ERROR) is (compiles and bool(missing))
        if compiles and missing:
            compiler = finding(findings, "compiler")
            assert all(name in compiler.evidence for name in missing)
            assert "--set compute.compile=false" in compiler.fix


def memory(available: int, **more: Any) -> preflight.Memory:
    given = {"total": 64 * GB, "swap": 0, "needed": 10 * GB, "reserve": 2 * GB}
    return preflight.Memory(**given | {"available": available} | more)


@each_case(
    ("available", "swap", "verdict"),
    [
        (64 * GB, 0, Severity.PASSED),
        (12 * GB, 0, Severity.PASSED),
        (12 * GB - 1, 0, Severity.WARNING),
        (9 * GB, 0, Severity.WARNING),
        (9 * GB - 1, 0, Severity.ERROR),
        (0, 0, Severity.ERROR),
        (4 * GB, 5 * GB, Severity.WARNING),
        (4 * GB, 4 * GB, Severity.ERROR),
        (11 * GB, 64 * GB, Severity.WARNING),
    ],
)
def test_main_memory_is_ok_degraded_or_refused(available: int, swap: int, verdict: Severity) -> None:
    """It is refused if memory and swap lack more than the tolerance; swap can never make it ok."""
    facts = replace(CPU_BOX, memory=memory(available, swap=swap))
    found = finding(preflight.judge_machine(config("cpu", batch_size=8), facts), "memory")
    assert found.severity is verdict
    assert format_size(available) in found.evidence
    if verdict is not Severity.PASSED:
        assert found.fix is not None
        assert "lower training.batch_size" in found.fix


def test_unknown_memory_is_not_judged() -> None:
    assert "memory" not in [found.subject for found in preflight.judge_machine(config("cpu"), CPU_BOX)]


@pytest.mark.parametrize("free_of_store", [None, 0, 71 * GB])
def test_the_copy_in_a_store_needs_room_on_its_disk(free_of_store: int | None) -> None:
    run, copy = preflight.disk_bytes_needed(config()), preflight.store_bytes_needed(config())
    there = replace(CPU_BOX, store="/srv/store", store_free_bytes=free_of_store)
    for free in (run - 1, run, run + copy):
        findings = preflight.judge_machine(config(), replace(there, disk_free_bytes=free))
        fits = free >= run + copy if free_of_store is None else free >= run and free_of_store >= copy
        assert (preflight.worst_severity(findings) is Severity.PASSED) is fits
        disks = [each.evidence for each in findings if each.subject == "disk"]
        assert len(disks) == (1 if free_of_store is None else 2)
        if free == run and not fits:
            assert any("/srv/store" in each for each in disks)


@pytest.mark.parametrize(
    ("steps", "save", "last", "every", "kept"),
    [
        (400, 100, 2, None, 2),
        (400, 100, 9, None, 4),
        (450, 100, 9, None, 5),
        (10, 100, 5, None, 1),
        (400, 100, 2, 200, 4),
        (1000, 100, 2, 200, 7),
        (None, 100, 5, None, 1),
    ],
)
def test_a_store_needs_space_for_the_checkpoints_that_a_run_keeps(
    steps: int | None, save: int, last: int, every: int | None, kept: int
) -> None:
    asked = config()
    saving = asked.checkpointing.model_copy(
        update={"save_steps": save, "keep_last": last, "keep_every": every}
    )
    length = asked.training.model_copy(update={"max_steps": steps})
    changed = asked.model_copy(update={"checkpointing": saving, "training": length})
    one = 12 * count_parameters(asked.model.architecture).total
    assert preflight.store_bytes_needed(changed) == kept * one


def test_code_of_no_commit_is_told_before_the_training_and_does_not_stop_it() -> None:
    findings = preflight.judge_machine(config(), replace(CPU_BOX, has_commit=False))
    told = finding(findings, "commit")
    assert (told.severity, preflight.worst_severity(findings)) == (Severity.WARNING, Severity.WARNING)
    assert "git clone" in str(told.fix)
    assert all(each.subject != "commit" for each in preflight.judge_machine(config(), CPU_BOX))
