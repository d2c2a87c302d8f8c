"""Dispatch the next segment of a run that stopped before its last step.

The segment uses the same commit and inputs. The number of segments is limited, and each must make progress. A
segment that exists already, because this job was run again, is not dispatched twice.

The segment is dispatched on the tag of the lineage, which keeps its commit. After an outage (exit code 4) it
follows after a pause.

Reads:      TRAINYARD_PLAN; NEEDS, GitHub's context `needs`, with the output `end` of the training job;
            GITHUB_TOKEN, GITHUB_REPOSITORY, GITHUB_API_URL; GITHUB_WORKFLOW_REF, the workflow to dispatch
Writes:     the tag, if it is gone, and one workflow dispatch, unless --dry-run; the job summary; the output
            `dispatched`, or `reason` if there is no further segment
Exit codes: 0 dispatched, now or before; 1 the run is not done, but there is no further segment, with
            the reason; 2 wrong usage; 4 GitHub refuses
Example:    trainyard step continue
"""

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainyard.command import output
from trainyard.command.parser import script_parser
from trainyard.errors import ConfigError, DamagedFileError, ExitCode
from trainyard.gateways.github import Level, annotate, append_summary, set_output, workflow_file
from trainyard.gateways.github_api import github_from
from trainyard.github.continuation import SegmentEnd, dispatch_once, next_segment, require_tag
from trainyard.github.job_end import outputs_of
from trainyard.github.variables import read_json
from trainyard.run.segment import read_handover
from trainyard.run.untrusted_files import parse_json_object

if TYPE_CHECKING:
    from trainyard.run.segment import Segment


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    return script_parser(__doc__, dry_run="print the inputs, dispatch nothing").parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if not (text := end_of_job(os.environ)):
        output.announce("next", "no further segment is due")
        return ExitCode.DONE
    plan = read_handover(os.environ.get("TRAINYARD_PLAN", ""))
    ended, thread, manifest = read_end(text, plan.segment)
    decision = next_segment(ended, most=plan.most_segments)
    if decision.next is None:
        annotate(Level.ERROR, decision.reason, title="The run is not done, and there is no further segment")
        set_output("reason", f"no further segment: {decision.reason}")
        output.announce("next", decision.reason, "failed")
        return ExitCode.NO
    inputs = plan.inputs_of(decision.next.with_thread(thread), manifest=manifest)
    if args.dry_run:
        output.print_json({"ref": decision.next.tag, "inputs": inputs})
        return ExitCode.DONE
    api, file = github_from(), workflow_file()
    if decision.pause_minutes:
        output.announce("next", decision.reason)
        time.sleep(60 * decision.pause_minutes)
    require_tag(api, decision.next)
    address, new = dispatch_once(api, file, decision.next, inputs=inputs)
    why = decision.reason if new else "it was dispatched before; nothing was dispatched now"
    text = f"segment {decision.next.number} of at most {plan.most_segments}: {why}"
    append_summary(f"### Continued: {text}\n\n{address}\n")
    output.announce("next", f"{text} {address}".rstrip(), "ok")
    set_output("dispatched", "true")
    return ExitCode.DONE


def end_of_job(environment: Mapping[str, str]) -> str:
    """Return the output `end` of the training job in NEEDS, if a next segment is due in this attempt."""
    outputs = outputs_of(read_json(environment, "NEEDS"), "train")
    is_due = outputs.get("continues") == environment.get("GITHUB_RUN_ATTEMPT", "1")
    return str(outputs["end"]) if is_due else ""


def read_end(text: str, segment: "Segment") -> tuple[SegmentEnd, str, str]:
    """Return how the segment ended, its Slack thread and manifest. Raises ConfigError for other text."""
    try:
        end = parse_json_object(text, "end")
        code, step = (int(end[name]) if str(end[name]).isdigit() else None for name in ("exit_code", "step"))
        manifest, is_outage = str(end["manifest"]), end["outage"] == "true"
        stored, is_running = end["stored"] == "true" and bool(manifest), end.get("running") == "true"
        ended = SegmentEnd(segment, code, step, stored=stored, is_outage=is_outage, is_running=is_running)
        return ended, str(end["thread"]), "" if is_outage else manifest
    except (DamagedFileError, KeyError, ValueError) as error:
        raise ConfigError(f"NEEDS has not the output `end` of the training job ({error})") from None
