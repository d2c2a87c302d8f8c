"""The lists of choices by name: recipes, kinds of store, kinds of jobs.

To add one, write a module and add one line here: the configuration's schema, its reference, the plans and the
error messages read these lists. The modules are named and not imported, because importing them takes seconds.
"""

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

DEFAULT_RECIPE = "pretrain"


@dataclass(frozen=True)
class Choice:
    """A valid value of a key."""

    meaning: str
    """The value in a few words, for the reference of the configuration."""
    module: str = ""
    """The dotted name of the module that defines it; empty where none does."""

    def preset(self) -> Any:
        """Return the `PRESET` of its module, which cannot be imported here: it reads the configuration."""
        return import_module(self.module).PRESET


RECIPES = {
    DEFAULT_RECIPE: Choice("next-token prediction on data.train_path"),
}
COMMAND = "command"
"""The recipe of any program: `program.command` names it, and it runs on every target."""


# Training programs that people know by name; the module defines a `programs.presets.preset.Preset`.
PRESETS = {
    "deepspeed": Choice("a script with DeepSpeed", "trainyard.programs.presets.deepspeed"),
    "hf-trainer": Choice("a script with the transformers Trainer", "trainyard.programs.presets.hf_trainer"),
    "lightning": Choice("a script with LightningCLI", "trainyard.programs.presets.lightning_cli"),
    "megatron": Choice("Megatron-LM's pretrain_gpt.py", "trainyard.programs.presets.megatron"),
    "nemo": Choice("NeMo 2, for Llama", "trainyard.programs.presets.nemo"),
    "torchtitan": Choice("one of torchtitan's configurations", "trainyard.programs.presets.torchtitan"),
    "trl-sft": Choice("TRL's supervised fine-tuning", "trainyard.programs.presets.trl_sft"),
    "verl": Choice("verl's GRPO", "trainyard.programs.presets.verl"),
}
_ANY_PROGRAM = {COMMAND: Choice("any program, named by program.command")}
EVERY_RECIPE: Mapping[str, Choice] = ChainMap({}, PRESETS, _ANY_PROGRAM, RECIPES)
"""The valid values of `recipe`."""


def is_program_run(run: Mapping[str, Any]) -> bool:
    """Return whether a `run.json` is that of another program, which decides itself what it does and logs."""
    recipe = run.get("recipe", DEFAULT_RECIPE)
    return not isinstance(recipe, str) or recipe not in RECIPES


@dataclass(frozen=True)
class StoreScheme:
    """A kind of store, by the scheme of its address."""

    module: str
    """The dotted name of a module that checks and opens addresses, like `gateways.s3.store`."""
    pattern: str
    """Regular expression of an address in a configuration; the module checks the details when it opens it."""
    strict_pattern: str
    """Regular expression of an address that is written into a GitHub variable for all later runs."""
    example: str


STORE_SCHEMES = {
    "s3": StoreScheme(
        "trainyard.gateways.s3.store",
        r"s3://[A-Za-z0-9][A-Za-z0-9._-]{1,254}(/.*)?",
        r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s]*)?",
        "s3://bucket/prefix",
    ),
    "file": StoreScheme(
        "trainyard.gateways.local_store.folder",
        r"file:///.*",
        r"file:///(?!.*%00)[^\s].*",
        "file:///folder",
    ),
}


def store_pattern() -> str:
    """Return the regular expression of every address of a store in a configuration."""
    return "|".join(scheme.pattern for scheme in STORE_SCHEMES.values())


def store_examples() -> str:
    """Return `s3://bucket/prefix or file:///folder`, for messages."""
    return " or ".join(scheme.example for scheme in STORE_SCHEMES.values())


DEFAULT_JOB_KIND = "pytorchjob"
"""The kind that is planned without a cluster, and for a cluster that serves no kind."""
JOB_KINDS = {
    DEFAULT_JOB_KIND: Choice("Kubeflow's PyTorchJob", "trainyard.jobs.kinds.pytorch_job"),
    "trainjob": Choice("TrainJob of Kubeflow Trainer 2", "trainyard.jobs.kinds.train_job"),
    "rayjob": Choice("KubeRay's RayJob, with a cluster of its own", "trainyard.jobs.kinds.ray_job"),
    "raycluster": Choice("a RayJob on a lasting RayCluster", "trainyard.jobs.kinds.ray_cluster"),
    "hyperpod": Choice("HyperPod's HyperPodPyTorchJob", "trainyard.jobs.kinds.hyperpod_pytorch_job"),
}
"""In the order in which `auto` tries them; each module defines a `jobs.job_kind.JobKind` as `KIND`."""
FOREIGN_JOB_KINDS = {"job": Choice("Job of Kubernetes, indexed", "trainyard.jobs.kinds.indexed_job")}
"""Kinds of jobs that are sent only from somebody else's manifest."""
_ANY_KIND = Choice("the first that the cluster serves")
JOB_KIND_CHOICES = ChainMap(dict[str, Choice](), JOB_KINDS, {"auto": _ANY_KIND})
"""The valid values of `cluster.kind`."""
