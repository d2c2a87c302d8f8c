"""The table of hardware: instance types, their devices, the room of a pod, and floors of the bandwidth."""

import pytest
from tests.cases import each_case

from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.plan.device import cpu, cpu_of, gpu, gpu_of, measures_of
from trainyard.plan.flops import flops_per_token
from trainyard.plan.instances import ALL_REDUCE, CATALOGUE, find_gpu, find_instance, room_of_type
from trainyard.plan.network_floor import PUBLISHED_BYTES, bandwidth_floor, judge_bandwidth


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


GIB = 2**30


@each_case(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA B200", 2.25e15),
        ("NVIDIA GB200", 2.5e15),
        ("NVIDIA B300 SXM6 AC", 2.25e15),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 500e12),
        ("NVIDIA RTX PRO 4500 Blackwell", None),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_the_peak_is_found_by_the_name_that_the_driver_gives(name: str, peak: float | None) -> None:
    assert gpu(name, GIB).peak(bfloat16=True) == peak


def test_part_of_the_memory_is_reserved_and_never_all_of_it_is_less_than_nothing() -> None:
    device = gpu("L4", 24 * GIB)
    assert device.usable_bytes == 24 * GIB - GIB - round(0.05 * 24 * GIB)
    assert gpu("tiny", GIB // 2).usable_bytes == 0


def test_an_instance_gives_one_of_its_gpus_or_its_processors() -> None:
    instance = find_instance("g6.12xlarge")
    assert gpu_of(instance).memory_bytes == 22888 * 2**20
    processors = cpu_of(instance)
    assert (processors.name, processors.memory_bytes) == ("24 CPU cores", 192 * GIB)


def test_more_cores_are_faster_and_float32_has_its_own_peak() -> None:
    one, two = cpu(cores=1, memory_bytes=GIB), cpu(cores=2, memory_bytes=GIB)
    assert one.name == "1 CPU core"
    assert gpu("A100 80GB", GIB).peak(bfloat16=False) == 19.5e12
    assert two.peak(bfloat16=False) == 2 * (one.peak(bfloat16=False) or 0)


def test_training_measures_itself_by_the_peak_of_its_precision() -> None:
    for dtype, peak in (("float32", 67e12), ("bfloat16", 989e12)):
        config = Config.model_validate({"model": {"name": "m", "dtype": dtype}})
        measures = measures_of(config)
        assert measures["peak_flops"]("NVIDIA H100 80GB HBM3") == peak
        assert measures["peak_flops"]("a GPU of next year") is None
        assert measures["flops_per_token"] == flops_per_token(
            config.model.architecture, config.data.sequence_length
        )


DAEMONS = 500
"""MiB for the DaemonSets of the node."""


def test_a_pod_leaves_the_memory_that_daemons_need_on_a_node_of_karpenter() -> None:
    for instance in CATALOGUE:
        for prefix in ("", "ml."):
            room = room_of_type(prefix + instance.name)
            assert room is not None
            assert 0 < room.memory_mib <= instance.allocatable_mib - DAEMONS, instance.name


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("g5.xlarge", 14162 - DAEMONS),  # the reserve of HyperPod's command line would be too small
        ("g7e.4xlarge", 115320 - DAEMONS),
        ("g5.8xlarge", 113321),
        ("p5.48xlarge", 1906575),
    ],
)
def test_a_pod_gets_what_the_reserve_leaves_and_no_more_than_karpenter_gives(name: str, memory: int) -> None:
    room = room_of_type(name)
    assert room is not None
    assert room.memory_mib == memory


def test_a_floor_rests_on_a_published_figure() -> None:
    for instance_type, nodes, floor in (
        ("p5.48xlarge", 2, 218.475),
        ("ml.p5.48xlarge", 2, 218.475),
        ("p5.48xlarge", 16, 200.0),
        ("p4de.24xlarge", 4, 25.0),
    ):
        assert bandwidth_floor(instance_type, nodes) == pytest.approx(floor)
    for instance_type, nodes in (("p5.48xlarge", 1), ("p4d.24xlarge", 2), ("", 2)):
        assert bandwidth_floor(instance_type, nodes) is None


@each_case("nodes", [2, 3, 64])
@each_case("kind", ALL_REDUCE)
def test_the_published_machines_are_fast_and_tcp_is_slow(kind: str, nodes: int) -> None:
    speed, _ = ALL_REDUCE[kind]
    assert not judge_bandwidth(speed, instance_type=kind, nodes=2, size=GIB).is_slow
    assert judge_bandwidth(speed / 10, instance_type=kind, nodes=nodes, size=GIB).is_slow


def test_a_small_message_is_not_compared_with_the_figure_of_a_large_one() -> None:
    found = judge_bandwidth(1.0, instance_type="p5.48xlarge", nodes=2, size=PUBLISHED_BYTES - 1)
    assert not found.is_slow and "messages of 1,073,741,824 bytes" in found.text


def test_machines_without_a_figure_are_never_slow() -> None:
    found = judge_bandwidth(0.001, instance_type="g5.48xlarge", nodes=2, size=GIB)
    assert not found.is_slow and found.floor is None
    assert "no figure is published for g5.48xlarge" in found.text
