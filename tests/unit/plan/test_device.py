"""The device that is planned for."""

from tests.cases import each_case

from trainyard.config.schema import Config
from trainyard.plan.device import cpu, cpu_of, gpu, gpu_of, measures_of
from trainyard.plan.flops import flops_per_token
from trainyard.plan.instances import find_instance

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
