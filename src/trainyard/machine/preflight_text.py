"""The text of a preflight: one line when all checks pass, else every failed check with its fix.

`preflight` makes the judgement.
"""

from trainyard.config.schema import Config
from trainyard.machine.checklist import markdown_cell
from trainyard.machine.preflight import MachineFacts, format_bytes, gpu_names
from trainyard.plan.finding import Finding, Severity


def summarize_machine(config: Config, facts: MachineFacts) -> str:
    """One line: `Python 3.11.7, torch 2.13.0, no GPU (training on CPU), 71 GB free`."""
    torch = f"torch {facts.torch}" if facts.torch else "no torch"
    gpus, free = _gpus_in_words(config, facts), format_bytes(facts.disk_free_bytes)
    return f"Python {facts.python}, {torch}, {gpus}, {free} free"


def refusal_text(findings: tuple[Finding, ...]) -> str:
    """Every failed check with its fix, and that nothing was started."""
    failed = [finding for finding in findings if finding.severity is Severity.ERROR]
    lines = [f"{finding.subject}: {finding.evidence}\n  fix: {finding.remedy}" for finding in failed]
    count = "1 check" if len(lines) == 1 else f"{len(lines)} checks"
    return "\n".join([*lines, f"{count} failed. Nothing was started."])


def refusal_line(findings: tuple[Finding, ...]) -> str:
    """The failed checks in one line, for a message: `gpu: nvidia-smi failed (exit code 9)`."""
    failed = (f"{f.subject}: {f.evidence}" for f in findings if f.severity is Severity.ERROR)
    return " ".join("; ".join(failed).split())


def refusal_markdown(findings: tuple[Finding, ...]) -> str:
    """The refusal as a job summary."""
    failed = [finding for finding in findings if finding.severity is Severity.ERROR]
    rows = [f"| {f.subject} | {markdown_cell(f.evidence)} | {markdown_cell(f.remedy)} |" for f in failed]
    title = f"### ❌ Not started: {', '.join(f.subject for f in failed)}"
    return "\n".join([title, "", "| check | found | fix |", "|---|---|---|", *rows, ""])


def _gpus_in_words(config: Config, facts: MachineFacts) -> str:
    if config.model.device == "cpu" or not facts.torch_gpu_bytes:
        return "no GPU (training on CPU)" if config.model.device in ("cpu", "auto") else "no usable GPU"
    return gpu_names(facts)
