"""The lists of choices by name: recipes, optimizers, kinds of store, kinds of jobs.

To add one, write a module and add one line here: the configuration's schema, its reference, the plans and the
error messages read these lists. The modules are named and not imported, because importing them takes seconds.
"""

import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import ConfigError, DamagedFileError

DEFAULT_RECIPE = "pretrain"


@dataclass(frozen=True)
class RecipeEntry:
    """A way to train, or another training program: `recipe` in the configuration."""

    meaning: str
    """The recipe in a few words, for the reference of the configuration."""


RECIPES = {
    DEFAULT_RECIPE: RecipeEntry("next-token prediction on data.train_path"),
}
COMMAND = "command"
"""The recipe of any program: `program.command` names it, and it runs on every target."""
_FOLDER = "configs/programs"


class ProgramPresets(Mapping[str, RecipeEntry]):
    """The presets of programs by name: each `NAME.yaml` in a folder of presets, read when needed.

    The folders are, in this order: `configs/programs` in the working directory, `configs/programs` in this
    repository, and the folder of the installed package. The first one that has the name is used.
    """

    def _files(self) -> dict[str, Path]:
        repository = Path(__file__).parents[3]
        farthest_first = (Path(sys.prefix) / "share/trainyard/programs", repository / _FOLDER, Path(_FOLDER))
        return {path.stem: path for folder in farthest_first for path in _readable_files(folder)}

    def path(self, name: str) -> Path:
        """Return the file of a preset. Raises KeyError where there is none."""
        return self._files()[name]

    def read(self, name: str) -> dict[str, Any]:
        """Return the values of a preset. Raises ConfigError for a file that is not YAML."""
        from trainyard.config.yaml_reader import parse_yaml

        path = self.path(name)
        try:
            values: dict[str, Any] = parse_yaml(path.read_bytes(), str(path))
        except (OSError, DamagedFileError) as error:
            raise ConfigError(str(error)) from None
        return values

    def __getitem__(self, name: str) -> RecipeEntry:
        return RecipeEntry(str(self.read(name).get("meaning", name)))

    def __contains__(self, name: object) -> bool:
        return name in self._files()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._files()))

    def __len__(self) -> int:
        return len(self._files())


def _readable_files(folder: Path) -> list[Path]:
    """Return the YAML files of a folder; none if it is missing or may not be read."""
    try:
        return list(folder.glob("*.yaml"))
    except OSError:
        return []


PRESETS = ProgramPresets()
_ANY_PROGRAM = {COMMAND: RecipeEntry("any program, named by program.command")}
EVERY_RECIPE: Mapping[str, RecipeEntry] = ChainMap({}, PRESETS, _ANY_PROGRAM, RECIPES)  # type: ignore[arg-type]
"""The valid values of `recipe`."""


@dataclass(frozen=True)
class OptimizerEntry:
    """An optimizer: `training.optimizer` in the configuration."""

    module: str
    """The dotted name of a module with `build(model, training)`, which returns a `torch.optim.Optimizer`."""
    meaning: str
    """The optimizer in a few words, for the reference of the configuration."""
    state_bytes_per_parameter: int
    """Bytes of its state per parameter, which the memory planner counts."""
    state_meaning: str
    """Its state in a few words, for the plan."""


DEFAULT_OPTIMIZER = "adamw"
OPTIMIZERS = {
    DEFAULT_OPTIMIZER: OptimizerEntry(
        "trainyard.training.model.adamw",
        "AdamW with weight decay of matrices only",
        8,
        "AdamW's two moments, float32",
    ),
}


def optimizer_bytes(name: str) -> int:
    """Return the bytes per parameter of the optimizer's state."""
    return OPTIMIZERS[name].state_bytes_per_parameter


@dataclass(frozen=True)
class StoreScheme:
    """A kind of store, by the scheme of its address."""

    module: str
    """The dotted name of a module that checks and opens addresses, like `gateways.s3.bucket_address`."""
    pattern: str
    """Regular expression of an address in a configuration; the module checks the details when it opens it."""
    strict_pattern: str
    """Regular expression of an address that is written into a GitHub variable for all later runs."""
    example: str


STORE_SCHEMES = {
    "s3": StoreScheme(
        "trainyard.gateways.s3.bucket_address",
        r"s3://[A-Za-z0-9][A-Za-z0-9._-]{1,254}(/.*)?",
        r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s]*)?",
        "s3://bucket/prefix",
    ),
    "file": StoreScheme(
        "trainyard.gateways.local_store.folder_address",
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


@dataclass(frozen=True)
class JobKindEntry:
    """A kind of job on a cluster: `cluster.kind` in the configuration."""

    module: str
    """The dotted name of a module that defines a `jobs.job_kind.JobKind` as `KIND`."""
    meaning: str
    """The kind in a few words, for the reference of the configuration."""


DEFAULT_JOB_KIND = "pytorchjob"
"""The kind that is planned without a cluster, and for a cluster that serves no kind."""
JOB_KINDS = {
    DEFAULT_JOB_KIND: JobKindEntry("trainyard.jobs.kinds.pytorch_job", "Kubeflow's PyTorchJob"),
    "trainjob": JobKindEntry("trainyard.jobs.kinds.train_job", "TrainJob of Kubeflow Trainer 2"),
    "rayjob": JobKindEntry("trainyard.jobs.kinds.ray_job", "KubeRay's RayJob, with a cluster of its own"),
    "raycluster": JobKindEntry("trainyard.jobs.kinds.ray_cluster", "a RayJob on a lasting RayCluster"),
    "hyperpod": JobKindEntry("trainyard.jobs.kinds.hyperpod_pytorch_job", "HyperPod's HyperPodPyTorchJob"),
}
"""In the order in which `auto` tries them."""
_ANY_KIND = JobKindEntry("", "the first that the cluster serves")
JOB_KIND_CHOICES = ChainMap(dict[str, JobKindEntry](), JOB_KINDS, {"auto": _ANY_KIND})
"""The valid values of `cluster.kind`."""
