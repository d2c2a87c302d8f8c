"""The catalogue of instance types and the search in it."""

import pytest

from trainyard.errors import ConfigError
from trainyard.plan.device import gpu_of
from trainyard.plan.instances import CATALOGUE, find_gpu, find_instance


def test_every_name_stands_once_and_finds_itself() -> None:
    assert len({instance.name for instance in CATALOGUE}) == len(CATALOGUE)
    assert all(find_instance(instance.name) is instance for instance in CATALOGUE)


def test_a_hyperpod_name_has_the_same_machine_and_no_price() -> None:
    plain, hyperpod = find_instance("g5.12xlarge"), find_instance("ml.g5.12xlarge")
    assert hyperpod.name == "ml.g5.12xlarge"
    assert hyperpod.usd_per_hour is None
    assert (hyperpod.gpus, hyperpod.gpu_memory_mib) == (plain.gpus, plain.gpu_memory_mib)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    answers = {
        "g6.xlrge": "g6.xlrge: unknown instance type; did you mean g6.xlarge?",
        "ml.p5.48xlage": "ml.p5.48xlage: unknown instance type; did you mean p5.48xlarge?",
        "quantum": "quantum: unknown instance type; known families: g5, g6, gr6, g6e, g7,",
        "x" * 100_000: "unknown instance type; known families:",
    }
    for name, said in answers.items():
        with pytest.raises(ConfigError) as refusal:
            find_instance(name)
        assert said in str(refusal.value)


def test_every_type_has_a_gpu_of_the_table_and_only_one_gpu_has_no_known_peak() -> None:
    assert all(find_gpu(instance.gpu) is not None for instance in CATALOGUE)
    unknown = {instance.gpu for instance in CATALOGUE if gpu_of(instance).peak(bfloat16=True) is None}
    assert unknown == {"RTX PRO 4500"}
