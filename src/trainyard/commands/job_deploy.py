"""Send a training job to a cluster: check the cluster, plan, apply, and wait for its end if requested.

    preflight ──> storage and queue, if the configuration says how ──> plan ──> apply ──> watch

All problems are reported at once, before anything is sent. A job that would train to its end and fail its
proof (no artifacts.store, for example) is one of them, unless --accept names the part, such as
network. A job that exists already with the same name and plan is not sent again. --dry-run queries a cluster
only if one is named. A command of your own can follow after --.

--manifest sends the job of somebody else's manifest: a PyTorchJob, TrainJob, RayJob, HyperPodPyTorchJob,
indexed Job, or a RayCluster with the entry point after --. That object is checked; only labels and a record
are added to it, and --dry-run shows them as a diff. With --prove its command is wrapped by `trainyard pod`,
which stores and proves the run; program settings and store come from --config.

Reads:      --config, --manifest; the kubeconfig, or AWS for --cluster; the cluster's API; ECR for the image
Writes:     the objects of the job into the cluster; --json prints the plan and the job's state
Exit codes: 0 sent, or with --wait succeeded; 1 the cluster is not ready, or the job failed; 2 wrong plan;
            4 the cluster or AWS refused; 5 not ended in time; 75 stopped with a good checkpoint
Example:    trainyard job deploy --config configs/training_configuration.yaml --num-nodes 4
            --instance-type p5.48xlarge --volume fsx-claim --queue research --set compute.strategy=fsdp
            --image-uri 123456789012.dkr.ecr.us-west-2.amazonaws.com/trainyard:1.4.0 --monitor
"""

import argparse
import json
import logging
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trainyard
from trainyard.cluster.cluster_query import ClusterQuery
from trainyard.cluster.job_preflight import preflight
from trainyard.cluster.server_side_apply import apply_all
from trainyard.cluster.trial_objects import WrittenTrial
from trainyard.cluster.verdict import require_checks, verdict_record
from trainyard.command import arguments, output, terminal
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.command.cluster_options import (
    add_cluster_options,
    add_plan_options,
    check_cluster_options,
    cluster_target,
    job_values,
)
from trainyard.command.parser import CommandParser, add_option, script_parser
from trainyard.config.cluster import ClusterConfig
from trainyard.config.load import load_config
from trainyard.config.registries import COMMAND
from trainyard.config.yaml_reader import dump_documents
from trainyard.errors import ConfigError, DamagedFileError, ExitCode
from trainyard.gateways.git import git_facts
from trainyard.gateways.github import refusal_in_summary
from trainyard.gateways.images.ecr import find_digest, image_or_newest
from trainyard.gateways.images.image_record import runs_code_of
from trainyard.gateways.kubernetes.api import Api
from trainyard.gateways.kubernetes.cluster_connection import open_api
from trainyard.jobs.follow.job_retries import RetryLoop
from trainyard.jobs.job_manifest import JobManifest, find_job, read_objects
from trainyard.jobs.job_planning import (
    config_in_pods,
    observe_cluster,
    plan_job,
    provenance_of,
    settle_job,
    warnings_of,
)
from trainyard.jobs.job_reader import JobReader
from trainyard.jobs.job_spec import JobSpec, Program, token_variable
from trainyard.jobs.job_submission import creator, find, is_deployed, refusals, require_ray_cluster, submit
from trainyard.jobs.kinds import KINDS, find_kind, kinds_of_cluster, train_job
from trainyard.jobs.manifest_proof import JobWrapper
from trainyard.jobs.plan_problems import find_storage_problems, job_findings, variable_scope
from trainyard.jobs.recipes import ANY_PROGRAM
from trainyard.plan.environment.environment_lint import lint_objects
from trainyard.plan.environment.job_manifest_rules import PLAIN_SECRET
from trainyard.plan.finding import Finding, Severity
from trainyard.programs.inputs import find_lock
from trainyard.programs.presets.preset import with_settings
from trainyard.proof import PARTS
from trainyard.proof.reachable_parts import PlannedRun, unreachable_parts
from trainyard.report.cluster.verdict_text import summarize_verdict, verdict_lines
from trainyard.report.jobs.job_text import manifest_diff
from trainyard.report.plan.plan_text import unproven_lines
from trainyard.run.launch_environment import nccl_log_variables
from trainyard.run.suggested_commands import ClusterTarget
from trainyard.run.untrusted_files import MOST_YAML_BYTES, read_text, read_yaml

if TYPE_CHECKING:
    from trainyard.cluster.fix import Step
    from trainyard.cluster.verdict import Verdict
    from trainyard.config.schema import Config
    from trainyard.jobs.job_kind import Manifests
    from trainyard.proof.reachable_parts import UnreachablePart

Json = dict[str, Any]
_logger = logging.getLogger("trainyard.deploy_training_job")
LINT = "lint"  # by which --accept ignores errors of a manifest
TEXTS = (
    ("--recipe", "NAME", "the program of the pods, such as megatron; default: the configuration's"),
    ("--job-name", "NAME", "default: made from model.name"),
    ("--hf-token-secret", "NAME[:KEY]", "a Secret with a token for the Hugging Face Hub; default key: token"),
    ("--ray-cluster", "NAME", "with raycluster: a RayCluster that is there; it stays"),
    ("--manifest", "FILE|DIR|-", "a job that somebody else wrote; - reads it from stdin"),
    ("--prove-from", "IMAGE", "with --prove: an init container copies Trainyard from its /opt/trainyard"),
)
REPEATED: tuple[tuple[str, Callable[[str], object], str, str], ...] = (
    ("--env", arguments.variable, "NAME=VALUE", "an environment variable; may be repeated"),
    ("--program-set", arguments.text, "KEY=VALUE", "a setting of the program; may be repeated"),
    ("--accept", arguments.text, "NAME", "ignore this check or part of the proof; may be repeated"),
)
OF_A_MANIFEST = (
    *("num_nodes", "gpu_per_node", "kind", "tolerate", "instance_type", "image_uri", "checkpoint_path"),
    *("queue", "volume", "priority_class", "secret", "recipe", "hf_token_secret", "ray_cluster", "env"),
    *("program_set", "nproc_per_node"),
)
"""Options for values that a manifest has itself."""
SWITCHES = (
    ("--wait", "wait for the end of the job"),
    ("--monitor", "the same as --wait; trainyard watch --job JOB shows the steps"),
    ("--prove", "with --manifest: store and prove the run; Trainyard must be in the image of the job"),
    ("--dry-run", "print the objects, or the changes to the manifest; send nothing"),
    ("--json", "print plan, objects and state as JSON"),
)


def make_parser() -> CommandParser:
    parser = script_parser(__doc__, reads_config=True, needs_config=False)
    add_plan_options(parser)
    for flag, metavar, meaning in TEXTS:
        parser.add_argument(flag, default="", metavar=metavar, help=meaning)
    processes = "processes per pod; default: one per GPU"
    add_option(parser, "--nproc-per-node", "N", processes, type=arguments.processes)
    again = "how often the job may be sent again; default: 0"
    add_option(parser, "--auto-retry", "N", again, type=arguments.natural_number, default=0)
    add_cluster_options(parser)
    for flag, read, metavar, meaning in REPEATED:
        parser.add_argument(flag, action="append", type=read, default=[], metavar=metavar, help=meaning)
    for flag, meaning in SWITCHES:
        parser.add_argument(flag, action="store_true", help=meaning)
    add_option(parser, "--timeout", "DURATION", "time limit of --wait", type=arguments.duration, default="7d")
    own = "after --: a program of your own"
    parser.add_argument("own", nargs="*", default=[], metavar="COMMAND", help=own)
    parser.check = check_options
    return parser


def check_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    check_cluster_options(parser, args)
    args.prove = args.prove or bool(args.prove_from)
    if args.config is None and (args.prove or not args.manifest):
        parser.error(
            "--config is needed: its store and program settings prove the run"
            if args.prove
            else "--config FILE is needed, or --manifest FILE for a job that somebody else wrote"
        )
    if args.prove and not args.manifest:
        parser.error("--prove is for --manifest; a job of --config is proven if it has a store")
    given = [name for name in OF_A_MANIFEST if getattr(args, name) != parser.get_default(name)]
    if args.manifest and given:
        flag = given[0].replace("_", "-")
        parser.error(f"--{flag} is not used with --manifest, which says it itself; change the manifest")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    return make_parser().parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    data, code = answer(args)
    if args.json and data:
        output.print_json(data)
    elif args.dry_run and "diff" in data:
        print("\n".join(data["diff"]))
    elif args.dry_run and data:
        print(dump_documents(data["objects"]), end="")
    return code


def answer(args: argparse.Namespace) -> tuple[Json, int]:
    """Plan and send the job that the options describe; see `deploy_job`."""
    wait_seconds = args.timeout if args.wait or args.monitor else None
    with refusal_in_summary("Nothing was sent"):
        if args.manifest:
            return deploy_manifest(args, wait_seconds=wait_seconds)
        recipe = [f"recipe={args.recipe}"] if args.recipe else []
        config = load_config(args.config, [*args.set, *recipe]).config
        config = with_settings(config, args.program_set) if args.program_set else config
        asked = JobSpec(
            **job_values(args),
            secrets=token_variable(args.hf_token_secret),
            name=args.job_name,
            processes_per_node=args.nproc_per_node or 0,
            environment=dict(args.env),
            program=Program("", tuple(args.own)),
            ray_cluster=args.ray_cluster,
            auto_retry=args.auto_retry,
        )
        dry = args.dry_run
        return deploy_job(config, asked, accept=args.accept, dry_run=dry, wait_seconds=wait_seconds)


def deploy_job(
    config: "Config",
    job: JobSpec,
    *,
    accept: Sequence[str] = (),
    dry_run: bool = False,
    wait_seconds: float | None = None,
) -> tuple[Json, int]:
    """Check the cluster and plan the job, then send it; return its record and the exit code.

    The record has the plan, with `dry_run` the objects, else the job's state; it is empty if the cluster is
    not ready. `accept` names checks of the cluster and parts of the proof to ignore. `wait_seconds` is how
    long the end of the job is waited for; None: not at all.
    """
    accepted = checks_of(accept)
    image = image_or_newest(job.image or config.cluster.image or "", os.environ, region=job.target.region)
    job = replace(job, image=image)
    target, api, code = job.target, None, ExitCode.DONE
    if dry_run and not (target.kubeconfig or target.context or target.cluster):
        job = settle_job(job, config)
    else:
        api = open_api(target, read=read_yaml)
        job = settle_job(job, config, namespace=api.access.namespace)
        query = ClusterQuery(api, job, kinds_of_cluster(job.kind))
        verdict = check_cluster(query, config.cluster, accepted=accepted, dry_run=dry_run)
        code = verdict.exit_code_without(accepted)
        job = observe_cluster(job, verdict, creator=creator(api))
    plan = make_plan(config, job, accept)
    manifests = KINDS[plan.kind].render(plan)
    if api is not None:
        require_ray_cluster(partial(find, api), plan, manifests)
    if api is None or dry_run:
        return ({}, code) if code else show(plan, manifests, api=api)
    # If the job exists already, the cluster may be full with its own pods.
    if code and not is_deployed(partial(find, api), plan, manifests):
        return {}, code
    # A RayJob is followed, not its RayCluster.
    return deploy(plan, manifests, api, replace(target, kind=""), wait_seconds=wait_seconds)


def checks_of(accept: Sequence[str]) -> list[str]:
    """Return the names that are checks of the cluster; the others name parts of the proof, or the lint."""
    found = [name for name in accept if name not in (*PARTS, LINT)]
    if found:
        require_checks(found, others=PARTS)
    return found


def new_run_id(job: JobSpec) -> str:
    # The longest id has 128 characters.
    return f"{job.namespace}-{job.name}"[:119] + f"-{secrets.token_hex(4)}"


def deploy_manifest(args: argparse.Namespace, *, wait_seconds: float | None) -> tuple[Json, int]:
    """Check, then send the job of a manifest; return its record and the exit code, as `deploy_job` does."""
    target, api, code = cluster_target(args), None, ExitCode.DONE
    accepted = checks_of(args.accept)
    written = find_job(read_objects(read_manifest(args.manifest), os.environ), args.job_name)
    if not args.dry_run or target.kubeconfig or target.context or target.cluster:
        api = open_api(target, read=read_yaml)
    own = str(written.job["metadata"].get("namespace") or "")
    if own and args.namespace not in ("", own):
        raise ConfigError(f"--namespace {args.namespace}: the manifest names {own}. Nothing was sent")
    space = own or args.namespace or (api.access.namespace if api else "") or "default"
    asked = JobSpec(
        name=args.job_name,
        namespace=space,
        auto_retry=args.auto_retry,
        target=target,
        provenance={"version": trainyard.__version__},
    )
    pods = written.pods(partial(find_runtime, api, space))
    job = written.spec(asked, pods, tuple(args.own))
    verdict = None
    if api is not None:
        seen, template = written.without_own_objects(job, pods.template)
        trial = WrittenTrial(written.job, template if pods.is_complete else None, pods.is_served)
        query = ClusterQuery(api, seen, kinds_of_cluster(job.kind), trial)
        verdict = check_cluster(query, ClusterConfig(), accepted=accepted, dry_run=True)
        code = verdict.exit_code_without(accepted)
        job = replace(job, creator=creator(api))
    job = replace(job, run_id=new_run_id(job), owner=f"{space}/{job.creator}/{job.manifest[:16]}")
    sent, plan = wrap_manifest(args, written, job) if args.prove else (written, job)
    for warning in warnings_of(plan):
        _logger.warning("%s", warning)
    lint_manifest(written, plan, args.accept)
    manifests = sent.add_record(plan)
    if api is None or args.dry_run:
        data, refused = show(plan, manifests, api=api)
        return {**data, "diff": manifest_diff(written.job, manifests.job, manifests.shared)}, code or refused
    if code and not is_deployed(partial(find, api), plan, manifests):
        return {}, code
    return deploy(plan, manifests, api, replace(target, kind=""), wait_seconds=wait_seconds)


def lint_manifest(written: JobManifest, plan: JobSpec, accept: Sequence[str]) -> None:
    """Log what is found in the manifest. Raises ConfigError for what cannot train as it is written."""
    found = lint_objects("the manifest", [written.job, *written.others], variable_scope(plan))
    log_findings(each for each in found if each.subject != "image")  # `warnings_of` has it
    errors = [each for each in found if each.severity is Severity.ERROR]
    # With a secret in plain text the job runs; whoever wrote it may want it so.
    wrong = [each.subject for each in errors if each.evidence != PLAIN_SECRET.evidence]
    if wrong and LINT not in accept:
        raise ConfigError(
            f"--manifest: as it is written, the job fails or does not use its network: {', '.join(wrong)}. "
            f"Nothing was sent. Change the manifest, or add --accept {LINT}"
        )


def read_manifest(where: str) -> list[tuple[str, str]]:
    """Return the names and texts of a manifest. Raises ConfigError."""
    if where == "-":
        return [("stdin", sys.stdin.read())]
    path = Path(where)
    for name, do in (("kustomization.yaml", "kustomize build"), ("Chart.yaml", "helm template")):
        if (path / name).is_file():
            raise ConfigError(f"{path} has a {name}: {do} {path} | trainyard job deploy --manifest -")
    files = [path]
    if path.is_dir():
        files = sorted(
            each for each in path.iterdir() if re.search(r"\.(ya?ml(-template)?|json)$", each.name)
        )
    try:
        found = [(str(each), read_text(each, most=MOST_YAML_BYTES)) for each in files]
    except (FileNotFoundError, DamagedFileError) as error:
        raise ConfigError(f"--manifest: {error}") from None
    if not found:
        raise ConfigError(f"--manifest {path}: the folder has no file of YAML or JSON")
    return found


def find_runtime(api: Api | None, namespace: str, reference: Json) -> Json | None:
    """Return the runtime that a TrainJob refers to; None if it, or the cluster, is not seen."""
    body = {"apiVersion": train_job.API, "metadata": {"namespace": namespace, "name": reference["name"]}}
    return None if api is None else find(api, {**body, "kind": reference["kind"]})


def wrap_manifest(
    args: argparse.Namespace, written: JobManifest, job: JobSpec
) -> tuple[JobManifest, JobSpec]:
    """Return the job with its commands wrapped, and its plan. Raises ConfigError."""

    def config_for(command: Sequence[str]) -> "Config":
        changes = [f"recipe={COMMAND}", f"program.command={json.dumps(command)}"]
        changes += [f"cluster.pod.grace_seconds={max(30, job.grace_seconds)}"]
        config = load_config(args.config, [*args.set, *changes]).config
        return config_in_pods(config, efa=job.resources.efa > 0)

    sent, plan = JobWrapper(written, job, config_for, args.prove_from).wrap()
    config = config_for(plan.program.command)
    plan = replace(plan, network=config.compute.network)
    if problems := [*find_storage_problems(config, plan)]:
        raise ConfigError("\n".join([*problems, "Nothing was sent."]))
    check_provable(config, plan, args.accept)
    source = f"Trainyard must be in the image {plan.image}"
    if args.prove_from:
        source = f"an init container copies Trainyard from {args.prove_from}"
    output.announce("prove", f"the command is wrapped by trainyard pod; {source}")
    return sent, plan


def check_cluster(
    query: ClusterQuery, settings: ClusterConfig, *, accepted: Sequence[str], dry_run: bool
) -> "Verdict":
    def apply(step: "Step") -> None:
        output.announce(step.check, step.what)
        apply_all(query.api, step.objects)

    change = None if dry_run else apply
    verdict = preflight(query, settings, find_digest=find_digest, apply=change)
    record = {**verdict_record(verdict), **query.record(verdict.facts.snapshot)}
    is_refused = verdict.exit_code_without(accepted)
    if is_refused:
        print("\n".join(verdict_lines(record, width=terminal.width())), file=sys.stderr)
    status = "failed" if is_refused else "degraded" if verdict.exit_code else "ok"
    note = f" Accepted: {', '.join(accepted)}." if status == "degraded" and accepted else ""
    output.announce("preflight", summarize_verdict(record) + note, status)
    return verdict


def make_plan(config: "Config", job: JobSpec, accept: Sequence[str]) -> JobSpec:
    ours = runs_code_of(REPOSITORY_ROOT, Path(trainyard.__file__).parent)
    lock = REPOSITORY_ROOT / "requirements-training.txt"
    origin = provenance_of(git_facts(REPOSITORY_ROOT) if ours else {}, lock)
    plan = plan_job(config, replace(job, run_id=job.run_id or new_run_id(job), provenance=origin))
    check_provable(config, plan, accept)
    for warning in (*warnings_of(plan), *lock_warnings(config, plan)):
        _logger.warning("%s", warning)
    log_findings(job_findings(plan))
    return plan


def log_findings(findings: "Iterable[Finding]") -> None:
    for found in findings:
        value = f"={found.value}" if found.value else ""
        level = logging.INFO if found.severity is Severity.INFO else logging.WARNING
        _logger.log(level, "%s%s: %s; %s", found.subject, value, found.evidence, found.fix)


def lock_warnings(config: "Config", plan: JobSpec) -> list[str]:
    """Warn of a program in the present folder without a lock; one that is in the image only is not seen."""
    folder = Path(config.program.directory).resolve()
    is_here = any((folder / word).is_file() for word in config.program.command or ())
    if plan.program.name != ANY_PROGRAM or config.program.lock or not is_here or find_lock(folder):
        return []
    return [
        f"program.lock: not set, and {folder} has no file that pins each package. If the image has "
        "none either, the job trains to its end and is not proven (repeatable: not on record: lock)"
    ]


def check_provable(config: "Config", plan: JobSpec, accept: Sequence[str]) -> None:
    """Warn of parts of the proof that cannot hold. Raises ConfigError for those that would fail the job."""
    parts = unproven_parts(config, plan)
    # Pods prove a run only if it is stored; a run of the user's own command is never proven.
    decides = bool(config.artifacts.store) and plan.program.keeps_run
    refused = [part for part in parts if decides and part.name not in accept]
    for line in unproven_lines([part.to_json() for part in parts if part not in refused]):
        _logger.warning("%s", line)
    if refused:
        lines = unproven_lines([part.to_json() for part in refused])
        flags = " ".join(f"--accept {part.name}" for part in refused)
        end = f"The job would train to its end and then fail. To train without this proof, add {flags}."
        raise ConfigError("\n".join([*lines, f"{end} Nothing was sent."]))


def unproven_parts(config: "Config", plan: JobSpec) -> "tuple[UnreachablePart, ...]":
    # Every process must write a log of NCCL that shows its channels.
    is_kept = not plan.program.once or bool(plan.program.nccl_log)
    is_logged = plan.resources.gpus > 0 and is_kept and bool(nccl_log_variables("log", plan.environment))
    network = config_in_pods(config, efa=plan.resources.efa > 0).compute.network
    where = (plan.nodes, plan.processes_per_node, network, config.artifacts.store or "")
    return unreachable_parts(PlannedRun(*where, plan.program.keeps_run, is_logged))


def show(plan: JobSpec, manifests: "Manifests", *, api: Api | None) -> tuple[Json, int]:
    """Return plan and objects; report what the API server would refuse."""
    # The runtime of a TrainJob that is sent with it does not exist yet.
    has_runtime = find_kind(plan.kind).needs_runtime and bool(manifests.before_job)
    checked = manifests.before_job if has_runtime else manifests.all
    problems = refusals(api, checked, namespace=plan.namespace) if api else []
    for problem in problems:
        _logger.error("%s", problem)
    data = {"plan": plan.to_json(), "objects": list(manifests.all)}
    return data, ExitCode.NO if problems else ExitCode.DONE


def deploy(
    plan: JobSpec, manifests: "Manifests", api: Api, target: ClusterTarget, *, wait_seconds: float | None
) -> tuple[Json, int]:
    """Send the job unless it exists already, and wait for its end if requested."""
    kind = find_kind(plan.kind).followed
    if there := is_deployed(partial(find, api), plan, manifests):
        output.announce("job", f"{plan.name} exists already, with the same plan")
    else:
        submit(api, manifests)
        output.announce("job", f"{manifests.job['kind']} {plan.name} sent to {plan.namespace}", "ok")
    data: Json = {"job": plan.name, "namespace": plan.namespace, "kind": plan.kind}
    code: int = ExitCode.DONE
    is_running = True
    if wait_seconds is not None or (there and JobReader(api).state(plan.namespace, plan.name, kind).ended):
        loop, seconds = RetryLoop(api, output.announce, target=target), wait_seconds or 60.0
        retries = wait_seconds is not None and plan.auto_retry > 0
        state = loop.follow_to_end(plan.namespace, plan.name, kind, seconds, retries=retries)
        code, data, is_running = state.exit_code, data | state.record(), not state.ended
        if is_running:
            late = f"{state.state.value}: not ended within --timeout, still running"
            output.announce("job", late, "failed" if code else "ok")
        elif state.proof:
            output.announce("proof", f"{state.proof}: --prove stores and proves the run")
        if state.failure is not None:
            if state.failure.cause:
                output.announce("error", state.failure.cause)
            output.announce("fix", state.failure.fix, copied=True)
    if is_running:
        what = "retry" if plan.auto_retry else "status"
        words = ("job", what, plan.name)
        output.announce("follow", target.command(*words, namespace=plan.namespace), copied=True)
    return {**data, "plan": plan.to_json()}, code
