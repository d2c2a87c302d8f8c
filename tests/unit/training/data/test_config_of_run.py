"""Whether a configuration as given is that of a run, in which its open values were resolved."""

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.cases import each_case

from trainyard.config.load import config_sha256, dump_yaml, load_config
from trainyard.config.schema import Config
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_identity, write_outcome
from trainyard.run.node_folder import NodeFolder, mark_trained, write_node
from trainyard.training.data.config_of_run import config_of_run, has_been_trained, with_revision

ROOT = Path(__file__).resolve().parents[4]
COMMIT = "c" * 40
WEIGHTS = ("model.path=org/weights", "training.max_steps=7")
BASE = [*sorted((ROOT / "configs").glob("*.yaml")), *sorted((ROOT / "configs" / "models").glob("*.yaml"))]
BASE.remove(ROOT / "configs" / "grpo.yaml")  # a program, whose configuration the trainer does not resolve
DATASET = ("data.hugging_face.dataset=org/data", "training.epochs=null", "training.max_steps=7")


def unchanged(config: Config) -> Config:
    return config


def with_weights(config: Config) -> Config:
    """The configuration as recorded when the Hub's weights decide commit, architecture, tokenizer, name."""
    path = f"org/weights@{COMMIT}"
    shape = config.model.architecture.model_copy(
        update={"vocab_size": 259, "hidden_size": 64, "intermediate_size": 128, "num_layers": 2}
        | {"num_attention_heads": 4, "num_key_value_heads": 2}
    )
    model = config.model.model_copy(
        update={"path": path, "architecture": shape, "tokenizer": path, "name": "weights"}
    )
    return config.model_copy(update={"model": model})


RESOLVED: dict[str, tuple[tuple[str, ...], Callable[[Config], Config]]] = {
    "nothing": ((), unchanged),
    "commit of a dataset": (DATASET, lambda config: with_revision(config, COMMIT)),
    "weights": (WEIGHTS, with_weights),
}
"""The resolved value -> the settings that leave it open, and the recorded configuration."""
OTHERS = ("training.max_steps=8", "training.learning_rate=0.5", "training.seed=9", "data.sequence_length=32")


def cases() -> Iterator[tuple[Path, str]]:
    for path, resolved in itertools.product(BASE, RESOLVED):
        if path.name == "fine_tuning.yaml" and resolved != "weights":
            continue  # without weights it is refused
        if resolved == "weights" and path.name != "fine_tuning.yaml":
            continue  # the other files state their architecture
        yield path, resolved


def settings_of(path: Path, resolved: str) -> list[str]:
    overlay = ["model.tokenizer=null", "training.max_steps=7"] if path.parent.name == "models" else []
    return [*overlay, *RESOLVED[resolved][0]]


def write_finished_run(directory: RunDirectory, config: Config, *, status: str = "succeeded") -> None:
    directory.create()
    directory.config_file.write_text(dump_yaml(config))
    write_identity(directory.run_file, "a", {"config_sha256": config_sha256(config)})
    write_outcome(directory.run_file, {"status": status, "exit_code": 0 if status == "succeeded" else 75})


@each_case(("path", "resolved"), list(cases()), ids=lambda value: getattr(value, "stem", value))
def test_a_finished_run_is_known_whatever_it_resolved(path: Path, resolved: str, tmp_path: Path) -> None:
    """Every shipped configuration x everything that is resolved; on the main machine and on another one."""
    given = settings_of(path, resolved)
    directory = RunDirectory(tmp_path / "run")
    config = RESOLVED[resolved][1](load_config(path, given).config)
    write_finished_run(directory, config)
    assert has_been_trained(directory.path, path, given)
    assert config_of_run(path, given, directory.path) == config, "the trainer resumes with the same"
    for change in OTHERS:
        assert not has_been_trained(directory.path, path, [*given, change]), change
    write_finished_run(directory, config, status="stopped")
    assert not has_been_trained(directory.path, path, given)

    directory.run_file.unlink()
    write_node(directory, NodeFolder("a", 1, 2))
    assert not has_been_trained(directory.path, path, given)
    for digest in (config_sha256(config), config_sha256(load_config(path, given).config)):
        mark_trained(directory, digest)
        assert has_been_trained(directory.path, path, given)
        assert not has_been_trained(directory.path, path, [*given, OTHERS[0]])


def test_the_run_of_another_program_is_compared_as_given(tmp_path: Path) -> None:
    path = ROOT / "configs" / "grpo.yaml"
    write_finished_run(RunDirectory(tmp_path), load_config(path).config)
    assert has_been_trained(tmp_path, path, [])
    assert not has_been_trained(tmp_path, path, ["training.max_steps=12345"])


def test_a_record_that_cannot_be_read_is_no_finished_run(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    path = ROOT / "configs" / "smoke.yaml"
    assert not has_been_trained(directory.path, path, [])
    write_finished_run(directory, load_config(path, ["artifacts.store=file:///runs"]).config)
    assert has_been_trained(directory.path, path, [])
    directory.config_file.unlink()
    assert not has_been_trained(directory.path, path, [])
    directory.run_file.write_text("{")
    assert not has_been_trained(directory.path, path, [])


def test_asking_imports_no_torch(tmp_path: Path) -> None:
    """A launcher calls it before the training starts, and stays in memory as long as the training."""

    directory = RunDirectory(tmp_path / "run")
    path = ROOT / "configs" / "smoke.yaml"
    write_finished_run(directory, load_config(path).config)
    code = (
        "import sys; from pathlib import Path\n"
        "from trainyard.training.data.config_of_run import has_been_trained\n"
        f"assert has_been_trained(Path({str(directory.path)!r}), Path({str(path)!r}), [])\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
