"""The permutation behind the order of samples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import each_case

from trainyard.training.data.batches import Permutation

SIZES = st.integers(1, 3000)
SEEDS = st.integers(0, 2**63)


def elements(size: int, *, seed: int = 1, epoch: int = 0) -> list[int]:
    result: list[int] = Permutation(size, seed=seed, epoch=epoch)(np.arange(size)).tolist()
    return result


@given(SIZES, SEEDS, st.integers(0, 1000))
@settings(max_examples=60)
def test_every_element_has_exactly_one_place(size: int, seed: int, epoch: int) -> None:
    assert sorted(elements(size, seed=seed, epoch=epoch)) == list(range(size))


@each_case("size", [1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257, 65_535, 65_537])
def test_sizes_around_powers_and_squares_are_bijections(size: int) -> None:
    assert sorted(elements(size)) == list(range(size))


@given(st.integers(1, 2**62), st.data())
@settings(max_examples=60)
def test_places_of_any_epoch_length_stay_in_range(size: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True))
    result = Permutation(size, seed=3, epoch=1)(np.array(places))
    assert len(set(result.tolist())) == len(places)
    assert result.min() >= 0
    assert result.max() < size


@given(SIZES, st.data())
@settings(max_examples=60)
def test_a_place_computed_alone_equals_the_place_in_the_permutation(size: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, size - 1))
    assert Permutation(size, seed=5, epoch=2)(np.array([place]))[0] == elements(size, seed=5, epoch=2)[place]


def test_epochs_differ() -> None:
    assert len({tuple(elements(100, epoch=epoch)) for epoch in range(200)}) == 200


def test_seeds_differ() -> None:
    assert len({tuple(elements(100, seed=seed)) for seed in range(200)}) == 200


def test_seed_and_epoch_do_not_run_together() -> None:
    assert elements(100, seed=1, epoch=11) != elements(100, seed=11, epoch=1)


def test_the_order_of_earlier_versions_is_kept() -> None:
    """A checkpoint holds a step, so another order would silently resume on other samples."""
    assert elements(10, seed=42) == [7, 8, 3, 2, 0, 1, 5, 6, 9, 4]
    far = Permutation(10**12, seed=42, epoch=7)(np.array([0, 10**12 - 1]))
    assert far.tolist() == [822407622927, 376584807837]


def test_first_elements_over_the_epochs_are_evenly_spread() -> None:
    """Chi-squared over 3,000 epochs of 64 elements, at places that a weak network would couple."""
    rows = np.array([elements(64, epoch=epoch) for epoch in range(3000)])
    for place in (0, 1, 8, 63):
        assert spread(rows[:, place], 64) < 1.6
    differences = (rows[:, 1] - rows[:, 0]) % 64
    assert spread(differences - 1, 63) < 1.6  # a difference of zero is impossible


def spread(values: np.ndarray, size: int) -> float:
    """Chi-squared per degree of freedom against an even spread over range(size): about 1 if random."""
    expected = values.size / size
    return float(((np.bincount(values, minlength=size) - expected) ** 2 / expected).sum() / (size - 1))


@pytest.mark.parametrize("size", [0, -1, 2**63])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="between one and"):
        Permutation(size, seed=0, epoch=0)
