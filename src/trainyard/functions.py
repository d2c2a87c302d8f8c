"""The functions that source documents 000, 002 and 004 name, to call from Python.

    from trainyard.functions import build_docker_image, deploy_training_job, manage_eks_cluster, push_to_ecr

Each of these four does what its command does (`trainyard image build`, `job deploy`, `cluster`,
`image push`), and `train_model` runs the pipeline of `trainyard run`. They return what the command prints
with --json, with the exit code as `exit_code`, and take every option of the command as a keyword:
`dry_run=True`, `region="us-west-2"`, `set=["training.max_steps=50"]`. Messages go to stderr. They raise the
errors of `trainyard.errors`, and are not for several threads at once.

The functions on files and S3 and `TrainingDashboard` are imported from their modules.
"""

from typing import Any

from trainyard.checkpoint_functions import (
    calculate_file_hash,
    create_manifest,
    sync_to_s3,
    upload_manifest,
    verify_s3_upload,
)
from trainyard.command.parser import UsageExit
from trainyard.commands import cluster, image_build, image_push, job_deploy, run
from trainyard.errors import CheckFailedError, ConfigError
from trainyard.pipeline import plan_record
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
    return _answer_of(image_build, dockerfile=dockerfile, **options)


def push_to_ecr(repository: str, *, image: str = "", **options: object) -> Json:
    """Push an image of this machine, by default `REPOSITORY:latest`; `image` of the answer has its digest."""
    return _answer_of(image_push, repository=repository, image=image or f"{repository}:latest", **options)


def manage_eks_cluster(
    cluster_name: str = "", *, validate_components: bool = True, auto_fix: bool = False, **options: object
) -> Json:
    """Check an EKS or HyperPod cluster, or that of a `kubeconfig`; `ready` of the answer is the verdict.

    `auto_fix` first adds what is missing, where that is safe; the answer has these steps as `steps`. Without
    `validate_components` the answer is the free capacity.
    """
    options = {"cluster": cluster_name, **options}
    fixed = _answer_of(cluster, command="fix", apply=True, **options) if auto_fix else {}
    found = _answer_of(cluster, command="check" if validate_components else "capacity", **options)
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
    """Send a training job, and with `monitor=True` follow it to its end; `status` is then its final one.

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
    return _answer_of(
        job_deploy,
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
    parser = run.make_parser()
    args = parser.read_values({"config": config, **options})
    request = run.request_of(args)
    if args.dry_run:
        return {**plan_record(run.pipeline_of(request).steps()), "exit_code": 0}
    return run.summary_of(*run.start(request, prints=False))


def _answer_of(module: Any, **options: object) -> Json:
    """Return the answer of a command's module to these options, with its exit code.

    Raises the errors of the command; ConfigError if it refuses the options, and CheckFailedError if it ends
    without an answer.
    """
    parser = module.make_parser()
    try:
        args = parser.read_values(options)
    except UsageExit as refused:
        raise ConfigError(refused.message) from None
    data, code = module.answer(args)
    if not data:
        raise CheckFailedError(f"nothing was done (exit code {int(code)}); stderr states why.")
    return {**data, "exit_code": int(code)}
