"""The functions that source documents 000, 002 and 004 name, to call from Python.

    from trainyard.functions import build_docker_image, deploy_training_job, manage_eks_cluster, push_to_ecr

Each of these four calls its command (`trainyard image build`, `job deploy`, `cluster`, `image push`), and
`train_model` calls `trainyard run`, in this process. They return what the command prints with --json, with
the exit code as `exit_code`, and take every option of the command as a keyword: `dry_run=True`,
`region="us-west-2"`, `set=["training.max_steps=50"]`. Messages go to stderr. They raise the errors of
`trainyard.errors`, and are not for several threads at once.

The functions on files and S3 and `TrainingDashboard` are imported from their modules. Nothing heavy is
imported before it is used.
"""

import io
import json
import signal
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trainyard.checkpoint_functions import (
    calculate_file_hash,
    create_manifest,
    sync_to_s3,
    upload_manifest,
    verify_s3_upload,
)
from trainyard.errors import CheckFailedError, ConfigError

if TYPE_CHECKING:
    from trainyard.report.dashboard.dashboard import TrainingDashboard

__all__ = [
    "TrainingDashboard",
    "build_docker_image",
    "calculate_file_hash",
    "create_manifest",
    "deploy_training_job",
    "manage_eks_cluster",
    "push_to_ecr",
    "sync_to_s3",
    "train_model",
    "upload_manifest",
    "verify_s3_upload",
]
CONFIG = "configs/training_configuration.yaml"
RETRIES = 3
Json = dict[str, Any]


def build_docker_image(
    dockerfile: str = "Dockerfile",
    *,
    image_name: str = "",
    image_tag: str = "",
    tag: str = "",
    auto_fix: bool = False,
    **options: object,
) -> Json:
    """Build an image in CodeBuild, which checks and pushes it, or here with `builder="local"`.

    `image` of the answer is the name to deploy; in AWS it has the digest. `image_tag`, or `tag`, is a version
    such as v1.0.0 or a name of your own. `auto_fix` first corrects lines of the Dockerfile, as `image lint
    --fix` does. `base_image` replaces the base whose FROM takes an argument.
    """
    options = {"image_name": image_name, "image_tag": image_tag or tag, "auto_fix": auto_fix, **options}
    return _call("image_build", dockerfile=dockerfile, **options)


def push_to_ecr(repository: str, *, image: str = "", **options: object) -> Json:
    """Push an image of this machine, by default `REPOSITORY:latest`; `image` of the answer has its digest."""
    return _call("image_push", repository=repository, image=image or f"{repository}:latest", **options)


def manage_eks_cluster(
    cluster_name: str = "", *, validate_components: bool = True, auto_fix: bool = False, **options: object
) -> Json:
    """Check an EKS or HyperPod cluster, or that of a `kubeconfig`; `ready` of the answer is the verdict.

    `auto_fix` first adds what is missing, where that is safe; the answer has these steps as `steps`. Without
    `validate_components` the answer is the free capacity.
    """
    options = {"cluster": cluster_name, **options}
    fixed = _call("cluster", "fix", apply=True, **options) if auto_fix else {}
    found = _call("cluster", "check" if validate_components else "capacity", **options)
    return {**found, "steps": fixed["steps"]} if fixed else found


def deploy_training_job(
    job_name: str = "",
    *,
    cluster_name: str = "",
    config: str = CONFIG,
    auto_retry: bool | int = False,
    hf_token: str = "",
    **options: object,
) -> Json:
    """Send a training job, and with `monitor=True` follow it to its end; `state` is then its final state.

    `image_uri`, `num_nodes`, `gpu_per_node`, `instance_type` and every other option of the command are
    keywords; model, tokenizer and steps are keys of `config`: `set=["training.max_steps=100"]`.
    `auto_retry=True` sends the job again up to three times. Raises ConfigError for `hf_token`.
    """
    if hf_token:
        raise ConfigError(
            "A token is never written into a job. Put it into a Secret of the namespace, under the key "
            "`token`, and pass the Secret's name as hf_token_secret."
        )
    retries = RETRIES if auto_retry is True else int(auto_retry)
    return _call(
        "job_deploy",
        job_name=job_name,
        cluster=cluster_name,
        config=config,
        auto_retry=retries,
        **options,
    )


def train_model(config: str = CONFIG, **options: object) -> Json:
    """Train, store and prove a run: `trainyard run`. The answer has its `outcome` and its `proof`.

    `run_dir`, `store` and every other option of the command are keywords; `set=["training.max_steps=50"]`
    changes values. An `exit_code` of 75 means that it stopped early with a good checkpoint: call it again.
    """
    return _call("run", config=config, **options)


def _call(module: str, *words: str, **options: object) -> Json:
    """Call a command with --json, and return what it prints with its exit code.

    Raises the errors of the command; ConfigError if it refuses the options, and CheckFailedError if it ends
    without an answer.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            code = import_module(f"trainyard.commands.{module}").main([*words, *_flags(options), "--json"])
    except SystemExit as refused:
        raise ConfigError(f"{module}: these options are refused; stderr states which and why.") from refused
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if not printed.getvalue():
        raise CheckFailedError(f"{module} ended with exit code {code}; stderr states why.")
    answer: Json = json.loads(printed.getvalue())
    return {**answer, "exit_code": int(code)}


def _flags(options: Mapping[str, object]) -> list[str]:
    """Return options as words of a command line; those that are None, False or empty are left out."""
    words = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        values = value if isinstance(value, list | tuple) else [value]
        given = [each for each in values if each is not None and each is not False and each != ""]
        words += [flag if each is True else f"{flag}={each}" for each in given]
    return words


def __getattr__(name: str) -> object:
    if name == "TrainingDashboard":
        return import_module("trainyard.report.dashboard.dashboard").TrainingDashboard
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
