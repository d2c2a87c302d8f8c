"""Mixed data: each part has its exact share, each sequence comes once a pass, any step can be sought."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.commands import prepare as command
from trainyard.config.combinations import impossible_combinations
from trainyard.config.schema import Config, DataConfig
from trainyard.errors import DataError
from trainyard.training.data.batches import TokenBatches
from trainyard.training.data.mixture import BLOCK, MixedBatches, prepare_mixture, shares_of
from trainyard.training.data.training_data import data_at_hand, ready_data
from trainyard.training.runtime.world import ALONE, DataShare

LENGTH = 4
WEIGHTS = st.lists(st.floats(0.01, 100), min_size=1, max_size=8)


def mixed(windows: list[int], weights: list[float], *, batch_size: int = 7, seed: int = 1) -> MixedBatches:
    """Parts whose tokens are the part's number times 10^6, plus the position of the token."""
    parts = []
    for number, count in enumerate(windows):
        tokens = np.arange(count * LENGTH + 1, dtype=np.uint32) + number * 10**6
        parts.append(TokenBatches(tokens, sequence_length=LENGTH, batch_size=1, seed=seed))
    return MixedBatches(parts, shares_of(weights), batch_size=batch_size, seed=seed)


@given(WEIGHTS)
def test_the_shares_of_a_block_are_the_weights_rounded_to_one_sequence(weights: list[float]) -> None:
    shares = shares_of(weights)
    assert sum(shares) == BLOCK
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - BLOCK * weight / sum(weights)) < 1


@given(WEIGHTS, st.integers(0, 3), st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_every_part_has_its_share_and_each_sequence_comes_once_a_pass(
    weights: list[float], block: int, seed: int
) -> None:
    windows = [11 + 3 * number for number in range(len(weights))]
    data, shares = mixed(windows, weights, seed=seed), shares_of(weights)
    seen: dict[int, list[int]] = {number: [] for number in range(len(weights))}
    for sequence in range(block * BLOCK, (block + 1) * BLOCK):
        part, index = data.place(sequence)
        seen[part].append(index)
    for number, share in enumerate(shares):
        assert seen[number] == list(range(block * share, (block + 1) * share))
    order = [data.place(sequence)[0] for sequence in range(block * BLOCK, block * BLOCK + 40)]
    if min(shares) > 200:
        assert len(set(order)) == len(weights), "the parts alternate"


@given(st.integers(0, 10**6), st.integers(1, 40))
@settings(max_examples=30)
def test_seeking_gives_the_batches_of_stepping(step: int, batch_size: int) -> None:
    walked = mixed([9, 30], [1, 3], batch_size=batch_size)
    for before in range(max(0, step - 3), step):
        walked.batch(before)
    sought = mixed([9, 30], [1, 3], batch_size=batch_size)
    batch = walked.batch(step)
    assert batch.shape == (batch_size, LENGTH + 1)
    assert np.array_equal(batch, sought.batch(step))


def test_an_epoch_has_as_many_sequences_as_all_parts() -> None:
    assert mixed([9, 30], [1, 3], batch_size=13).steps_per_epoch == 3
    other = mixed([9, 30], [1, 3], batch_size=13, seed=2)
    assert not np.array_equal(mixed([9, 30], [1, 3], batch_size=13).batch(0), other.batch(0))


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, float]:
    """Two folders of texts that differ in every character, with their weights."""
    for name, letter in (("small", "a"), ("my large", "b")):
        (tmp_path / name).mkdir()
        for number in range(6):
            (tmp_path / name / f"{number}.txt").write_text(letter * (400 if name == "small" else 4000))
    return {str(tmp_path / "small"): 3.0, str(tmp_path / "my large"): 1.0}


def config_of(texts: dict[str, float], folder: Path, **data: Any) -> Config:
    values = {"mixture": texts, "sequence_length": 16, "prepared_directory": str(folder / "prepared"), **data}
    return Config.model_validate({"model": {"name": "x"}, "training": {"max_steps": 5}, "data": values})


def letters(windows: np.ndarray) -> list[str]:
    return [chr(int(np.bincount(row[row < 256]).argmax())) for row in windows]


@pytest.mark.parametrize("packing", ["concatenate", "separate"])
@pytest.mark.parametrize("own_validation", [False, True])
def test_texts_are_mixed_by_weight_whatever_their_size(
    texts: dict[str, float], tmp_path: Path, packing: str, own_validation: bool
) -> None:
    (tmp_path / "held.txt").write_text("c" * 900)
    path = {"validation_path": str(tmp_path / "held.txt")} if own_validation else {}
    config = config_of(texts, tmp_path, packing=packing, **path)
    assert data_at_hand(config.data, config.model) is None
    data = ready_data(config.data, config.model)
    again = data_at_hand(config.data, config.model)
    assert again is not None and again.fingerprint == data.fingerprint
    batches = data.batches(sequence_length=16, batch_size=100, seed=0)
    drawn = [
        letter
        for step in range(10)
        for rows in batches.share(step, DataShare(ALONE), size=100)[0]
        for letter in letters(abs(rows))
    ]
    assert (drawn.count("a"), drawn.count("b")) == (750, 250)
    held = letters(abs(data.validation_windows(length=16, count=8)))
    assert set(held) == ({"c"} if own_validation else {"a", "b"})
    facts = data.to_json()
    assert [part["share"] for part in facts["parts"]] == [0.75, 0.25]
    assert facts["train_tokens"] == sum(part["train_tokens"] for part in facts["parts"])
    other = ready_data(config_of(dict.fromkeys(texts, 1.0), tmp_path).data, config.model)
    assert other.fingerprint != data.fingerprint, "other weights are other data"


def test_a_part_that_is_missing_is_named(texts: dict[str, float], tmp_path: Path) -> None:
    config = config_of({**texts, str(tmp_path / "gone"): 1.0}, tmp_path)
    with pytest.raises(DataError, match=r"data\.mixture, .*gone: "):
        prepare_mixture(config.data, config.model)


def test_the_command_prepares_each_part(
    texts: dict[str, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mix.yaml"
    config = config_of(texts, tmp_path)
    data = {key: value for key, value in config.data.model_dump().items() if key != "hugging_face"}
    file.write_text(json.dumps({"model": {"name": "x"}, "training": {"max_steps": 5}, "data": data}))
    for words, has_files in ((["--dry-run"], False), ([], True)):
        assert command.main(["--config", str(file), "--json", *words]) == 0
        assert len(json.loads(capsys.readouterr().out)["parts"]) == 2
        assert any((tmp_path / "prepared").glob("*/train.bin")) is has_files


def test_a_mixture_that_cannot_be_had_is_refused() -> None:
    cases: dict[str, dict[str, Any]] = {
        "data.train_path": {"train_path": "x"},
        "data.hugging_face.dataset": {"hugging_face": {"dataset": "x"}},
        "data.mixture": {"mixture": {"a": 1.0, "b": 0.0001}},
    }
    config = Config.model_validate({"model": {"name": "x"}, "training": {"max_steps": 5}})
    for key, values in cases.items():
        data = DataConfig.model_validate({"mixture": {"a": 1.0, "b": 1.0}, **values})
        refused = impossible_combinations(config.model_copy(update={"data": data}))
        assert [each.keys[0] for each in refused] == [key]
