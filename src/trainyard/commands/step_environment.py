"""Check that this machine can run a configuration.

It compares Python and all packages with the lock; the GPU and its driver with the CUDA release of torch; GPU
memory with the model's minimum (16 bytes per parameter, and the logits); main memory, or the limit of the
container, with a step on the CPU or the copies beside a GPU; and free disk space with the kept checkpoints
and one more (12 bytes per parameter each), the prepared data, and the copy in a store that is a folder. All
failed checks are reported at once, each with its fix. Another process on the GPU is named, with its memory
and who started it. In a job of GitHub, a run directory that the next job's git clean would delete is refused.

Reads:      the configuration, requirements-training.txt, nvidia-smi, torch, the memory of this machine and of
            its control group, the free space at --run-dir, a file:// --store, prepared data and TMPDIR
Writes:     no file; with --json every finding on stdout; in GitHub Actions a refusal in the job summary, and
            as one line in the step output `reason`
Exit codes: 0 fit to train (degraded findings are reported); 1 a check failed; 2 the configuration is wrong
Example:    trainyard step environment --config configs/smoke.yaml
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from trainyard.artifacts.store.store_address import local_store_folder, require_address
from trainyard.command import arguments, output, terminal
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.command.parser import add_option, script_parser
from trainyard.config.load import load_config
from trainyard.errors import CheckFailedError, ConfigError
from trainyard.gateways import local_machine
from trainyard.gateways.actions_runner import lost_machine
from trainyard.gateways.git import git_facts, is_cleaned
from trainyard.gateways.github import Level, annotate, in_actions, refusal_in_summary
from trainyard.gateways.images.image_record import code_facts
from trainyard.gateways.local_machine import main_memory
from trainyard.gateways.nvidia import query_compute_processes, query_gpus
from trainyard.gateways.process import run_program
from trainyard.gateways.process_tree import ancestors, find_process
from trainyard.jobs.recipes import program_here
from trainyard.machine.gpu_processes import VARIABLES, GpuProcess, judge_gpu_processes
from trainyard.machine.package_lock import compare_versions, read_pins
from trainyard.machine.preflight import (
    MachineFacts,
    Memory,
    failure,
    findings_record,
    judge_machine,
    refusal_text,
    summarize_machine,
    worst_severity,
)
from trainyard.plan.device import reserve_of
from trainyard.plan.device_memory import main_memory_need
from trainyard.plan.finding import Finding, Severity
from trainyard.programs.inputs import find_data
from trainyard.report.terminal.phase import PhaseDisplay
from trainyard.run.untrusted_files import read_named_text
from trainyard.training.weights.pretrained import load_with_weights

if TYPE_CHECKING:
    from trainyard.config.schema import Config

HOSTED_MINUTES = 360
"""Minutes after which GitHub ends a job on its own machines."""
# A first import of torch on a busy machine with a slow disk takes minutes.
TORCH_SECONDS = 600.0
_TORCH_FACTS = """
import json
from trainyard.training.runtime.hardware import torch_facts
print(json.dumps(torch_facts()))
"""
LOCK = REPOSITORY_ROOT / "requirements-training.txt"


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, reads_config=True, json="every finding")
    path, runs = arguments.path, Path("runs")
    add_option(parser, "--run-dir", "DIR", "the run's directory", type=path, default=runs)
    add_option(parser, "--store", "URL", "s3://bucket/prefix or file:///folder")
    add_option(parser, "--lock", "FILE", "lock that must be installed", type=path, default=LOCK)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    return check_environment(
        args.config, args.set, run_dir=args.run_dir, store=args.store, lock=args.lock, as_json=args.json
    )


def check_environment(
    file: Path,
    changes: Sequence[str] = (),
    *,
    run_dir: Path,
    store: str | None = None,
    lock: Path = LOCK,
    as_json: bool = False,
) -> int:
    """Check this machine for a configuration, and report. Raises CheckFailedError if it is not fit."""
    with terminal.show_live(PhaseDisplay("environment", "checking the packages, the driver and torch")):
        findings, line = find_on_machine(file, changes, run_dir=run_dir, store=store, lock=lock)
    return report_findings(findings, line, as_json=as_json)


def find_on_machine(
    file: Path, changes: Sequence[str] = (), *, run_dir: Path, store: str | None = None, lock: Path = LOCK
) -> tuple[tuple[Finding, ...], str]:
    """Return the findings about this machine for a configuration, and the machine in one line."""
    if store:
        require_address(store)
    given = load_config(file, changes).config
    if given.is_program:
        return find_for_program(given, run_dir, store)
    config = load_with_weights(file, changes).config
    on_cpu = config.model.device == "cpu"
    # The driver is queried before torch is imported, which may open the GPU itself.
    other_findings = () if on_cpu else tuple(judge_gpu_processes(other_gpu_processes()))
    facts = gather(config, lock=lock, run_dir=run_dir, store=store)
    job = job_findings(run_dir, store, is_kept=given.artifacts.store_is_kept)
    findings = (*judge_machine(config, facts), *other_findings, *job)
    return findings, summarize_machine(config, facts)


def find_for_program(
    config: "Config", run_dir: Path, store: str | None = None
) -> tuple[tuple[Finding, ...], str]:
    """Check that the program of the configuration can start here: its folder, its first word and its data.

    Its packages are its own, so nothing is compared with the lock of this repository. Raises CheckFailedError
    without the program.
    """
    program = program_here(config, run_dir.absolute())
    path = program.environment.get("PATH", os.environ.get("PATH"))
    first = program.command[0]
    place = str(program.directory / first) if "/" in first else first
    if shutil.which(place, path=path) is None:
        raise CheckFailedError(
            f"program.command: {first} is not a program that can be run in {program.directory}. Activate its "
            "environment, or name the path of its interpreter, such as .venv/bin/python. Nothing was started."
        )
    find_data(program.directory, program.data or ())
    gpus = [gpu.name for gpu in query_gpus().gpus]
    free = local_machine.free_bytes(run_dir) / 1e9
    line = f"{first}, {f'{len(gpus)} × {gpus[0]}' if gpus else 'no GPU'}, {free:,.0f} GB free"
    others = other_gpu_processes() if gpus else ()
    job = job_findings(run_dir, store, is_kept=config.artifacts.store_is_kept)
    return (*judge_gpu_processes(others), *job), line


def report_findings(findings: tuple[Finding, ...], line: str, *, as_json: bool) -> int:
    """Report the findings; on GitHub degraded ones are warnings. Raises CheckFailedError if one failed."""
    worst = worst_severity(findings)
    if as_json:
        output.print_json({**findings_record(findings), "summary": line})
    output.announce("environment", line, worst.verdict)
    for finding in findings:
        if finding.severity is Severity.WARNING:
            output.announce(finding.subject, f"{finding.evidence}; {finding.fix}", "degraded")
            annotate(Level.WARNING, f"{finding.evidence}\nNext: {finding.fix}", title=finding.subject)
    if worst is Severity.ERROR:
        refuse_start(findings)
    return 0


def refuse_start(findings: tuple[Finding, ...]) -> NoReturn:
    """Raise an error with the failed checks, which are also in the job summary and the output `reason`."""
    failed = dict.fromkeys(each.subject for each in findings if each.severity is Severity.ERROR)
    # A name that is another run's is a matter of usage, as it is where the number is claimed.
    kind = ConfigError if [*failed] == ["run number"] else CheckFailedError
    with refusal_in_summary(f"Not started: {', '.join(failed)}"):
        raise kind(refusal_text(findings))


def job_findings(run_dir: Path, store: str | None, *, is_kept: bool) -> Iterator[Finding]:
    """Yield the findings about this GitHub job: its run directory, its store and its limit."""
    yield from run_directory_findings(run_dir)
    machine, minutes = lost_machine(), os.environ.get("JOB_MINUTES", "")
    is_hosted = os.environ.get("RUNNER_ENVIRONMENT") == "github-hosted"
    folder = local_store_folder(store or "")
    if machine and folder and not is_kept and (is_hosted or not local_machine.is_on_network(folder)):
        yield failure(
            "store",
            f"{store} is a folder of {machine}, which is gone after the job, with all that is stored there",
            "name a store that stays, s3://BUCKET/PREFIX or a network mount (TRAINYARD_STORE, or the input "
            "store); if this folder stays: artifacts.store_is_kept=true",
        )
    if is_hosted and minutes.isdigit() and int(minutes) > HOSTED_MINUTES:
        yield failure(
            "time limit",
            f"GitHub ends jobs on its machines after {HOSTED_MINUTES} minutes, and this one has {minutes}",
            "gh variable set TRAINYARD_JOB_MINUTES --body 355, then start a new run",
        )


def run_directory_findings(run_dir: Path) -> Iterator[Finding]:
    """Yield a failure for a run directory in this checkout that the next job's `git clean` deletes."""
    is_inside = Path(os.path.realpath(run_dir)).is_relative_to(os.path.realpath(REPOSITORY_ROOT))
    if in_actions() and is_inside and is_cleaned(run_dir):
        yield failure(
            "run directory",
            f"{run_dir} is in the checkout and not ignored by git, so the next job's git clean deletes it",
            "gh variable set TRAINYARD_RUNS_DIRECTORY --body /mnt/storage/runs, or another folder outside of "
            "the checkout",
        )


def other_gpu_processes() -> tuple[GpuProcess, ...]:
    """Return the processes that compute on the GPUs of this job, without this one and its parents."""
    own, found = {each.pid for each in ancestors(os.getpid())}, []
    for each in query_compute_processes():
        process = find_process(each.pid)
        command = " ".join(process.arguments).strip() if process else ""
        # In a container the driver's pid may be another process here, so the names must agree.
        if process is None or Path(each.name).name not in command:
            found.append(GpuProcess(each.pid, each.name, each.memory_bytes))
        elif each.pid not in own:
            environment = process.environment()  # empty if it may not be read
            known = {key: environment[key] for key in VARIABLES if key in environment}
            found.append(GpuProcess(each.pid, command, each.memory_bytes, process.user, known))
    return tuple(found)


def gather(config: "Config", *, lock: Path, run_dir: Path, store: str | None) -> MachineFacts:
    """Collect the facts about this machine that the checks need."""
    pins = read_pins(read_named_text(lock, "--lock names the lock to compare with"))
    driver = query_gpus()
    drives = bool(driver.gpus or driver.trouble or local_machine.has_nvidia_driver())
    # Importing torch takes seconds; without a driver its version file is enough.
    torch, cuda, memory = query_torch() if drives else (*local_machine.installed_torch(), ())
    is_new = not (run_dir / "run.json").exists()  # a started run may already be in the store
    store_folder = local_store_folder(store or config.artifacts.store or "") if is_new else None
    is_apart = store_folder and local_machine.file_system_of(store_folder) != local_machine.file_system_of(
        run_dir
    )
    return MachineFacts(
        python=sys.version.split()[0],
        torch=torch,
        torch_cuda=cuda,
        torch_gpu_bytes=memory,
        gpus=driver.gpus,
        gpu_trouble=driver.trouble,
        disk=str(run_dir),
        disk_free_bytes=local_machine.free_bytes(run_dir)
        + local_machine.measure_path(run_dir / "checkpoints"),
        store=str(store_folder or ""),
        store_free_bytes=local_machine.free_bytes(store_folder) if store_folder and is_apart else None,
        memory=memory_of(config, gpus=0 if config.model.device == "cpu" else len(memory)),
        lock_differences=compare_versions(pins, local_machine.installed_versions()),
        missing_for_compiling=local_machine.missing_for_compiling(
            on_gpu=bool(memory) and config.model.device != "cpu"
        ),
        has_commit="commit" in (git_facts(REPOSITORY_ROOT) or code_facts(REPOSITORY_ROOT)),
    )


def memory_of(config: "Config", *, gpus: int) -> Memory | None:
    """Return the main memory, and how much training needs; None if the configured GPU is missing."""
    if config.model.device.startswith("cuda") and not gpus:
        return None
    here = main_memory()
    return Memory(
        total=here.total_bytes,
        available=here.available_bytes,
        swap=here.swap_bytes,
        needed=main_memory_need(config, gpus=gpus),
        reserve=reserve_of(here.available_bytes),
    )


def query_torch() -> tuple[str | None, str | None, tuple[int, ...]]:
    """Return torch's version, CUDA release and GPU memories; all unknown if torch cannot be imported.

    A process of its own imports torch: this one may wait for the training, and must not hold its memory.
    """
    done = run_program([sys.executable, "-c", _TORCH_FACTS], seconds=TORCH_SECONDS)
    if not done.ok:
        return None, None, ()
    facts = json.loads(done.stdout.splitlines()[-1])
    return facts["version"], facts["cuda"], tuple(facts["gpu_memory_bytes"])
