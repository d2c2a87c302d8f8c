#!/usr/bin/env python3
"""Show a job on a real cluster made for it: two nodes and two pods train, store and prove a run.

    control plane, two nodes, training operator ──> job deploy --monitor ──> prove ──> gone

The kit in the folder $TRAINYARD_CONTROL_PLANE makes the cluster: API server, kubelets and containerd. It
needs no container engine and no network. The image of the pods is this machine, with this environment. The
demonstration uses the same scripts and objects as any other cluster; there is no GPU.

Reads:      TRAINYARD_CONTROL_PLANE; --config
Writes:     a new folder in --runs, with the run, its report and its store; a temporary one until the end
Exit codes: 0 trained and proven; 1 it failed, or is not proven; 2 wrong configuration, or this machine lacks
            something, which is named; 5 not ended in time
Example:    tests/deploy_demo.py --config configs/smoke.yaml --set training.max_steps=60
"""

import argparse
import importlib
import importlib.util
import os
import platform
import shutil
import site
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from trainyard.command import arguments, output
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.command.handler import exit_code_of
from trainyard.command.parser import script_parser
from trainyard.commands.run import settings
from trainyard.errors import ConfigError, ExitCode

SCRIPTS = REPOSITORY_ROOT / "scripts"
VARIABLE = "TRAINYARD_CONTROL_PLANE"
IMAGE, JOB, CLAIM, NAMESPACE = "example.com/trainyard-demo:1", "demo", "checkpoints", "default"
SETTINGS = {
    "training.max_steps": 20,
    "training.batch_size": 4,
    "training.warmup_steps": 5,
    "training.validation_steps": 10,
    "training.validation_batches": 2,
    "data.sequence_length": 64,
    "checkpointing.save_steps": 10,
    "compute.strategy": "ddp",
    "compute.threads": 1,
    "model.device": "cpu",
    "cluster.pod.python": sys.executable,
    "cluster.pod.directory": REPOSITORY_ROOT,
    "cluster.pod.cpu": 2,
    "cluster.pod.memory": "3Gi",
    "cluster.pod.run_as_user": 0,  # the Python environment may be in a folder that only root may read
    "cluster.pod.grace_seconds": 60,
    "cluster.volume.claim": CLAIM,
    "artifacts.store": "file:///checkpoints/store",
}
"""Settings of a short demonstration; --set overrides them."""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, reads_config=True)
    runs = "folder in which the run gets a new folder; default: runs"
    parser.add_argument("--runs", type=arguments.path, default=Path("runs"), metavar="DIR", help=runs)
    parser.add_argument(
        "--timeout", type=arguments.duration, default="10m", metavar="DURATION", help="time limit of the job"
    )
    several = "change values: KEY=VALUE words, quoted as in a shell"
    parser.add_argument("--settings", default="", metavar="WORDS", help=several)
    parser.add_argument("--keep-logs", action="store_true", help="keep the logs of cluster and operator")
    parser.add_argument("--dry-run", action="store_true", help="check this machine only")
    args = parser.parse_args(argv)
    args.set += settings(args.settings)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    started = time.monotonic()
    kit = load_kit(os.environ.get(VARIABLE, ""))
    if args.dry_run:
        output.announce("demo", "this machine can run it", "ok")
        return ExitCode.DONE
    volume = args.runs.resolve() / time.strftime("demo-%Y%m%d-%H%M%S")
    folder = Path(tempfile.mkdtemp(prefix="trainyard-demo-"))
    try:
        code = run_demo(args, kit, folder=folder, volume=volume)
    finally:
        if args.keep_logs:
            output.announce("logs", str(folder))
        else:
            shutil.rmtree(folder, ignore_errors=True)
    verdict = "cluster made, job deployed, watched and proven" if not code else "not proven"
    output.announce("demo", f"{verdict}, in {time.monotonic() - started:.0f} s", "failed" if code else "ok")
    return code


def load_kit(folder: str) -> Any:
    """Return the kit's module of real nodes. Raises ConfigError that names what this machine lacks."""
    if not folder:
        raise ConfigError(
            f"{VARIABLE} is not set. It names the folder of the kit that makes a cluster on this machine: "
            "control_plane.py, operators/ and node/. Nothing was started."
        )
    places = [Path(folder), Path(folder, "operators"), Path(folder, "node")]
    missing = [place for place in places if not place.is_dir()]
    if missing:
        raise ConfigError(f"{VARIABLE}: there is no folder {missing[0]}. Nothing was started.")
    if not sys.platform.startswith("linux"):
        raise ConfigError(f"The demonstration needs Linux; this is {platform.system()}. Nothing was started.")
    for place in places:
        site.addsitedir(str(place))
    try:
        module = importlib.import_module("real_node")
        importlib.import_module("operators")
    except ImportError as error:
        raise ConfigError(f"{VARIABLE}: {folder} is not the kit ({error}). Nothing was started.") from None
    try:
        module.require()
    except module.Unavailable as error:
        raise ConfigError(f"This machine cannot run real nodes: {error}. Nothing was started.") from None
    return module


def run_demo(args: argparse.Namespace, kit: Any, *, folder: Path, volume: Path) -> int:
    """Make the cluster, deploy the job, prove it from outside, and remove the cluster."""
    from trainyard.gateways.process import run_passing_signals

    compile_packages()
    with make_cluster(kit, folder, volume) as cluster:
        job = ["--kubeconfig", str(cluster.kubeconfig), "--namespace", NAMESPACE]
        settings = [f"--set={key}={value}" for key, value in SETTINGS.items()]
        deploy = [
            *(
                sys.executable,
                str(SCRIPTS / "deploy_training_job.py"),
                "--config",
                str(args.config),
                *settings,
            ),
            *(f"--set={change}" for change in args.set),
            *("--job-name", JOB, "--num-nodes", "2", "--gpu-per-node", "0"),
            *("--image-uri", cluster.image, *job),
            *("--accept", "storage"),  # both nodes are this machine, so a folder of it is shared by all
            *("--monitor", "--timeout", f"{args.timeout}s"),
        ]
        code = run_passing_signals(deploy)
        if code:
            logs = [
                sys.executable,
                str(SCRIPTS / "manage_training_job.py"),
                "logs",
                JOB,
                "--tail",
                "40",
                *job,
            ]
            run_passing_signals(logs)
            return code
    output.announce("cluster", "removed; the run is now proven again without it")
    run = ["--run-dir", str(volume / NAMESPACE / JOB), "--store", (volume / "store").as_uri()]
    return run_passing_signals([sys.executable, str(SCRIPTS / "prove_run.py"), *run, "--run-number", "auto"])


def compile_packages() -> None:
    """Compile torch to bytecode if necessary, because each new container would do it again."""
    from trainyard.gateways.process import run_program

    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin:
        folder = str(Path(torch.origin).parent)
        run_program([sys.executable, "-m", "compileall", "-q", "-j", "0", folder], seconds=600.0)


@contextmanager
def make_cluster(kit: Any, folder: Path, volume: Path) -> Iterator[Any]:
    """Yield a cluster of two nodes with the training operator, an image of this machine, and one volume."""
    output.announce("cluster", "API server, scheduler, and two nodes with kubelet and containerd")
    with ExitStack() as held:
        cluster = held.enter_context(kit.RealCluster(folder / "cluster", real_nodes=2))
        cluster.image = cluster.load_image(IMAGE, layers=["/"])
        cluster.load_init_image()
        cluster.add_volume(CLAIM, path=volume)
        spec = {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": CLAIM,
            "resources": {"requests": {"storage": "1Ti"}},
        }
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM},
            "spec": spec,
        }
        cluster.request("POST", f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims", claim)
        bound = "--for=jsonpath={.status.phase}=Bound"
        cluster.kubectl("wait", bound, f"pvc/{CLAIM}", "-n", NAMESPACE, "--timeout=60s")
        start = importlib.import_module("operators").start
        held.enter_context(start("training-operator", cluster.kubeconfig, folder))
        output.announce("cluster", "two nodes are ready, and the training operator answers", "ok")
        yield cluster


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
