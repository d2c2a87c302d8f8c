"""The time and the cost of a training."""

import pytest
from tests.unit.plan.conftest import workload

from trainyard.config.schema import TrainingConfig
from trainyard.plan.cost import RentedMachines, default_mfu, estimate
from trainyard.plan.device import gpu, gpu_of
from trainyard.plan.flops import flops_per_token
from trainyard.plan.instances import find_instance

HERE = RentedMachines(None, 1)


def test_time_is_operations_over_the_assumed_share_of_the_peak() -> None:
    instance, work = find_instance("p5.48xlarge"), workload()
    result = estimate(
        TrainingConfig(max_steps=1000), work, gpu_of(instance), rented=RentedMachines(instance, 2), mfu=0.5
    )
    flops = 1000 * 4 * 2048 * flops_per_token(work.architecture, 2048)
    assert result.tokens == 1000 * 4 * 2048
    assert result.flops == flops
    assert result.seconds == pytest.approx(flops / (0.5 * 989e12))
    assert result.usd == pytest.approx(flops / (0.5 * 989e12) / 3600 * 2 * 55.04)


def test_what_is_not_known_is_none_and_never_zero() -> None:
    training = TrainingConfig(max_steps=10)
    unknown_gpu = estimate(training, workload(), gpu("Some GPU", 2**36), rented=HERE, mfu=0.4)
    assert (unknown_gpu.seconds, unknown_gpu.usd, unknown_gpu.tokens_per_second) == (None, None, None)
    assert unknown_gpu.tokens == 10 * 4 * 2048
    unpriced = find_instance("p5e.48xlarge")
    without_price = estimate(
        training, workload(), gpu_of(unpriced), rented=RentedMachines(unpriced, 1), mfu=0.4
    )
    assert without_price.seconds is not None
    assert without_price.usd is None
    endless = estimate(TrainingConfig(epochs=3), workload(), gpu("H100", 2**36), rented=HERE, mfu=0.4)
    assert (endless.steps, endless.tokens, endless.flops, endless.seconds) == (None, None, None, None)
    assert endless.tokens_per_second is not None


def test_compiled_steps_are_assumed_to_be_faster() -> None:
    assert default_mfu(workload(compiled=True)) > default_mfu(workload(compiled=False))
    assert default_mfu(workload(on_gpu=False)) > default_mfu(workload())
