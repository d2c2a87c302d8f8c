"""The plan of a training run as text: whether it fits, then the figures, then what to change.

It reads only the JSON of `plan.training_plan`; absent figures are not mentioned.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainyard.errors import ConfigError, DamagedFileError
from trainyard.report.facts.quantities import (
    format_count,
    format_duration,
    format_percent,
    format_scaled,
)
from trainyard.run.sizes import format_size
from trainyard.run.untrusted_files import parse_json_object

Plan = Mapping[str, Any]
_PARTS = {
    "weights": "float32 parameters, rotary tables",
    "gradients": "float32",
    "moments": "AdamW's two moments, float32",
    "copies": "bfloat16 copies of the weights",
    "activations": "kept for the backward pass",
    "logits": "logits and loss",
    "workspace": "temporary memory of single operations",
    "staging": "copy of the state for checkpointing.mode",
}


def read_plan(text: str) -> dict[str, Any]:
    """Return what `summarize_expectations` wrote. Raises ConfigError if it is none."""
    try:
        return dict(parse_json_object(text, "plan"))
    except DamagedFileError as error:
        raise ConfigError(f"the plan of a run is damaged: {error}") from None


def plan_text_lines(plan: Plan) -> list[str]:
    """The complete plan, the result first."""
    rows = [*_parameters(plan), *_memory(plan), *_device(plan["device"]), *expectation_rows(plan)]
    head = [plan_headline(plan), *unproven_lines(plan.get("unproven", ()))]
    text = [*head, "", *(f"  {name:<13} {value}" for name, value in rows)]
    advice = list(_advice(plan))
    return [*text, "", *advice] if advice else text


def unproven_lines(parts: Sequence[Plan]) -> list[str]:
    """The parts of the proof that cannot hold (`proof.reachable_parts`), a line for each reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for part in parts:
        reasons.setdefault((part["why"], part["fix"]), []).append(part["name"])
    return [f"cannot be proven: {', '.join(names)}: {why}; {fix}" for (why, fix), names in reasons.items()]


def plan_headline(plan: Plan) -> str:
    """`tinyllama-1b fits on one L4 (g6.xlarge): 19.1 GB at the peak, 21.7 GB usable`."""
    device, peak = plan["device"], plan["memory"]["peak_bytes"]
    verdict = "fits on" if plan["fits"] else "does not fit on"
    where = f"one {device['name']}" if device["kind"] == "gpu" else device["name"]
    if "instance_type" in device:
        where += f" ({device['instance_type']})"
    usable = format_size(device["usable_bytes"])
    text = f"{plan['model']} {verdict} {where}: {format_size(peak)} at the peak, {usable} usable"
    if plan["fits"]:
        return text
    if peak <= device["usable_bytes"]:
        host, usable = plan["memory"]["host_bytes"], device["host_usable_bytes"]
        return f"{text}, but {format_size(host)} of main memory, {format_size(host - usable)} too much"
    return f"{text}, {format_size(peak - device['usable_bytes'])} too much"


def expectation_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the length, time and cost of a run, as far as they are known."""
    return [*_length(plan), *_time(plan)]


def _parameters(plan: Plan) -> Iterator[tuple[str, str]]:
    run = plan["run"]
    compiled = ", compiled" if run["compiled"] else ""
    shape = f"{run['batch_size']} × {run['sequence_length']:,} tokens per forward pass"
    yield "parameters", f"{plan['parameters']['total']:,}, in {run['dtype']}{compiled}, {shape}"
    if plan["device"]["devices_used"] > 1:
        offloaded = ", offloaded to the host" if run["cpu_offload"] else ""
        spread, of_each = f"{run['replicas']} × {run['shards']}", "replicas × shards"
        if run["tensor_parallel"] > 1:
            spread, of_each = f"{spread} × {run['tensor_parallel']}", f"{of_each} × tensor parallel"
        yield "layout", f"{run['strategy']}: {spread} devices ({of_each}){offloaded}"


def _memory(plan: Plan) -> Iterator[tuple[str, str]]:
    memory = plan["memory"]
    yield "memory", f"highest at the {memory['peak_at']}"
    for part, bytes_ in memory["parts"].items():
        if bytes_:
            yield f"  {part}", f"{format_size(bytes_):>9}   {_PARTS[part]}{_detail(part, plan)}"
    if memory["host_bytes"]:
        yield "main memory", f"{format_size(memory['host_bytes'])} {_host(plan)}"


def _host(plan: Plan) -> str:
    """The use of main memory, and how much of it is usable."""
    run, usable = plan["run"], plan["device"].get("host_usable_bytes")
    staged = f"the copy that checkpointing.mode: {run['checkpointing_mode']} saves from"
    offloaded = "weights, moments and gradients"
    wants = [offloaded] * run["cpu_offload"] + [staged] * (run["checkpointing_mode"] != "sync")
    known = f" ({format_size(usable)} usable)" if usable is not None else ""
    return f"for {' and '.join(wants)}, each process{known}"


def _detail(part: str, plan: Plan) -> str:
    if part == "moments" and plan["run"]["gradient_compression"] != "none":
        return ", and the residuals of gradient compression"
    if part != "activations":
        return ""
    memory = plan["memory"]
    scores = "; attention without a fused kernel keeps every score" if memory["attention_scores_kept"] else ""
    return f", {format_size(memory['block_activation_bytes'])} per block{scores}"


def _device(device: Plan) -> Iterator[tuple[str, str]]:
    reserve = f"{format_size(device['reserve_bytes'])} of it reserved for other uses than tensors"
    yield "device", f"{device['name']}, {format_size(device['memory_bytes'])}, {reserve}"
    idle = device.get("devices", device["devices_used"]) - device["devices_used"]
    if idle > 0:
        gpus = format_count(device["devices"], "GPU")
        yield "idle", f"{idle} of {gpus}: the run uses {device['devices_used']}"


def _length(plan: Plan) -> Iterator[tuple[str, str]]:
    run, expected = plan["run"], plan["estimate"]
    a_step = f"{run['tokens_per_step']:,} tokens"
    if "steps" not in expected:
        yield "length", f"{a_step} per step; its length is not known (training.max_steps is not set)"
        return
    steps = format_count(expected["steps"], "step")
    flops = f"{expected['flops']:.2g}".replace("e+", "e")
    total = f"{format_scaled(expected['tokens'])} tokens, {flops} FLOP"
    yield "length", f"at most {steps} of {a_step}: {total}"


def _time(plan: Plan) -> Iterator[tuple[str, str]]:
    expected, device = plan["estimate"], plan["device"]
    if "tokens_per_second" not in expected:
        yield "time", f"not known: no peak is on record for {device['name']} in {plan['run']['dtype']}"
        return
    mfu, peak = format_percent(expected["mfu"]), format_scaled(expected["peak_flops"])
    assumed = f"{mfu} MFU assumed of {peak}FLOP/s (--mfu)"
    speed = f"{format_scaled(expected['tokens_per_second'])} tok/s"
    if "seconds" in expected:
        yield "time", f"about {format_duration(expected['seconds'])}, {speed} at {assumed}"
    else:
        yield "speed", f"about {speed} at {assumed}"
    if "usd" in expected:
        rate = f"{device['instance_type']} at $ {device['usd_per_hour'] / device['nodes']:,.2f} an hour"
        nodes = f"{device['nodes']} × " if device["nodes"] > 1 else ""
        source = f"us-east-1, on demand, {device['prices_as_of']}"
        yield "cost", f"about $ {expected['usd']:,.2f}: {nodes}{rate} ({source})"


def _advice(plan: Plan) -> Iterator[str]:
    if plan["fits"]:
        return
    if not plan["advice"]:
        yield "No change is enough: use a smaller model.architecture or a shorter data.sequence_length."
    for change in plan["advice"]:
        arguments = [f"--set {override}" for override in change["set"]]
        where, each = "here", " each" if change["devices"] > 1 else ""
        if "instance_type" in change:
            arguments.append(f"--instance-type {change['instance_type']}")
            count = change["devices"] if each else "one"
            where = f"on {count} {change['gpu']}, $ {change['usd_per_hour']:,.2f} an hour"
        yield f"It fits {where} with {format_size(change['peak_bytes'])}{each}:"
        yield f"  {' '.join(arguments)}"
