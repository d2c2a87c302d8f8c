"""Loading a configuration: the shipped files, the round trip through YAML, the digest."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainyard.config.from_weights import DeclaredShape
from trainyard.config.key_lookup import leaf_keys
from trainyard.config.load import config_sha256, dump_yaml, load_config
from trainyard.config.schema import ArchitectureConfig, Config
from trainyard.config.section import LONGEST_TEXT, MOST
from trainyard.errors import ConfigError
from trainyard.programs.program import program_of

MINIMAL = "model: {name: x}\ntraining: {max_steps: 5}\n"
CONFIGS = Path(__file__).parents[3] / "configs"


def test_the_shipped_configuration_holds_the_agreed_values() -> None:
    config = load_config(CONFIGS / "training_configuration.yaml").config
    training = config.training
    assert (config.model.name, config.model.dtype) == ("tinyllama-1b", "bfloat16")
    assert (config.model.device, config.compute.compile) == ("cuda:0", True)
    assert (training.batch_size, training.gradient_accumulation_steps) == (4, 4)
    assert (training.learning_rate, training.lr_scheduler) == (5e-5, "cosine")
    assert (training.epochs, training.max_steps, training.seed) == (3, 5000, 42)
    assert (config.checkpointing.save_steps, config.checkpointing.keep_last) == (500, 5)
    assert (config.data.sequence_length, config.monitoring.log_steps) == (2048, 10)
    assert config.monitoring.wandb.enabled
    assert config.monitoring.tensorboard
    assert config.kernel_optimization.compression_ratio == 30.0


def test_the_shipped_configuration_names_nothing_that_exists_only_elsewhere() -> None:
    """Every value that could name a file, a folder, a store or an account's own thing."""
    config = load_config(CONFIGS / "training_configuration.yaml").config
    told = config.model_dump()
    elsewhere = (
        *("path", "tokenizer", "train_path", "validation_path"),
        *("dataset", "store", "entity", "channel"),
    )

    def values(section: Any) -> Iterator[tuple[str, Any]]:
        for name, value in section.items():
            yield from values(value) if isinstance(value, dict) else [(name, value)]

    found = {name: value for name, value in values(told) if name in elsewhere}
    assert found == dict.fromkeys(elsewhere)
    texts = [value for _, value in values(told) if isinstance(value, str)]
    assert not [text for text in texts if "://" in text or text.startswith(("./", "/", "~"))]
    assert config.monitoring.wandb.project == "trainyard"


@pytest.mark.parametrize("name", ["smoke", "grpo"])
def test_what_runs_on_a_laptop_depends_on_no_file_store_or_compiler(name: str, folder: Path) -> None:
    """Also after the owner has set their weights, data and store in the file that it extends."""
    own = (
        "  path: null|  path: ./mine.gguf",
        "  tokenizer: null|  tokenizer: ./mine.json",
        "  train_path: null|  train_path: ./mine",
        "  validation_path: null|  validation_path: ./mine",
        "  store: null|  store: s3://mine/runs",
    )
    for path in CONFIGS.rglob("*.yaml"):
        text = path.read_text()
        if path.name == "training_configuration.yaml":
            for before, _, after in (each.partition("|") for each in own):
                assert text.count(before) == 1, before
                text = text.replace(before, after)
        target = folder / path.relative_to(CONFIGS)
        target.parent.mkdir(exist_ok=True)
        target.write_text(text)
    theirs, ours = (load_config(root / f"{name}.yaml").config for root in (folder, CONFIGS))
    assert theirs == ours
    assert (ours.model.device, ours.model.dtype, ours.compute.compile) == ("auto", "float32", False)


def test_smoke_extends_it_and_logs_every_step() -> None:
    loaded = load_config(CONFIGS / "smoke.yaml")
    assert loaded.config.monitoring.log_steps == 1
    assert loaded.config.data.train_path is None
    assert loaded.origins["training.seed"].file.endswith("training_configuration.yaml")
    assert tuple(loaded.origins) == leaf_keys()


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
NUMBER = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
COUNT = st.integers(1, MOST)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "model": st.fixed_dictionaries({"name": TEXT, "path": st.none() | TEXT, "tokenizer": TEXT}),
    "training": st.fixed_dictionaries(
        {
            "max_steps": COUNT,
            "learning_rate": NUMBER,
            "max_grad_norm": st.none() | NUMBER,
            "weight_decay": NUMBER,
        }
    ),
    "data": st.fixed_dictionaries({"train_path": st.none() | TEXT, "text_field": TEXT}),
}
ONE_FOLDER = [HealthCheck.function_scoped_fixture]


@settings(suppress_health_check=ONE_FOLDER)
@given(values=st.fixed_dictionaries(VALUES))
def test_any_configuration_survives_the_way_to_yaml_and_back(tmp_path: Path, values: dict[str, Any]) -> None:
    config = Config.model_validate(values)
    (tmp_path / "config.yaml").write_text(dump_yaml(config), encoding="utf-8", newline="")
    assert load_config(tmp_path / "config.yaml").config == config


@settings(max_examples=2 * settings().max_examples, suppress_health_check=ONE_FOLDER)
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode(errors="replace")))
def test_no_content_whatever_is_answered_with_a_traceback(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.yaml").write_bytes(content)
    with pytest.raises(ConfigError):
        load_config(tmp_path / "c.yaml")


@settings(max_examples=2 * settings().max_examples, suppress_health_check=ONE_FOLDER)
@given(
    argument=st.text(max_size=30)
    | st.builds("{}={}".format, st.sampled_from(leaf_keys()), st.text(max_size=20))
)
def test_no_override_whatever_is_answered_with_a_traceback(tmp_path: Path, argument: str) -> None:
    (tmp_path / "c.yaml").write_text(MINIMAL)
    try:
        load_config(tmp_path / "c.yaml", [argument])
    except ConfigError as error:
        assert "1 error" in str(error) or "2 errors" in str(error)


def test_the_digest_depends_on_every_value_and_on_nothing_else(folder: Path) -> None:
    (folder / "a.yaml").write_text(MINIMAL)
    (folder / "b.yaml").write_text(
        "# the same\ntraining: {max_steps: 5, weight_decay: 1e-1}\nmodel: {name: x}\n"
    )
    digest = config_sha256(load_config(Path("a.yaml")).config)
    assert len(digest) == 64
    assert config_sha256(load_config(Path("b.yaml")).config) == digest
    changed = {"training.seed=43", "model.name=y", "artifacts.store=file:///x", "training.weight_decay=0.2"}
    others = {config_sha256(load_config(Path("a.yaml"), [change]).config) for change in changed}
    assert len(others | {digest}) == 5


def test_text_of_the_longest_length_is_taken(folder: Path) -> None:
    (folder / "c.yaml").write_text(f"model: {{name: {'a' * LONGEST_TEXT}}}\ntraining: {{max_steps: 5}}\n")
    assert len(load_config(Path("c.yaml")).config.model.name) == LONGEST_TEXT


def test_the_example_is_given_the_depth_of_the_questions() -> None:
    config = load_config(CONFIGS / "grpo.yaml", ["kernel_optimization.rlvr_depth=2"]).config
    program = program_of(config, CONFIGS.parent)
    assert program.command[2:] == ("--max_steps=60", "--depth=2", "--seed=42")
    assert program.lock is not None
    assert program.lock.samefile(CONFIGS.parent / "requirements-training.txt")


def test_the_configuration_for_fine_tuning_trains_no_random_weights() -> None:
    path = CONFIGS / "fine_tuning.yaml"
    with pytest.raises(ConfigError, match=r"fine_tuning\.yaml:\d+: model\.path: not set"):
        load_config(path)
    assert load_config(path, ["model.path=./weights"]).config.model.path == "./weights"


def test_a_key_of_another_model_goes_where_the_weights_do_not_declare_it(folder: Path) -> None:
    (folder / "c.yaml").write_text(MINIMAL.replace("name: x", "name: x, architecture: {num_layers: 3}"))

    def declare(path: str, _unknown: object) -> DeclaredShape:
        return DeclaredShape("config.json", {"model.architecture.hidden_size": 640}, path)

    loaded = load_config(Path("c.yaml"), ["model.path=./weights"], read_weights=declare)
    assert loaded.config.model.architecture == ArchitectureConfig(hidden_size=640)
    assert loaded.origins["model.architecture.num_layers"].file == "default"
