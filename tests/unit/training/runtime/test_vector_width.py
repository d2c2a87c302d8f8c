"""The width of the vectors in compiled kernels, read off the code that is generated."""

from collections.abc import Iterator

import pytest
import torch
from tests.conditions import COMPILES
from torch._inductor import config as compiler
from torch._inductor.cpp_builder import CppTorchOptions
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._inductor.utils import run_and_get_code

from trainyard.errors import ConfigError
from trainyard.training.runtime import hardware
from trainyard.training.runtime.hardware import available_widths, set_vector_width


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Restore the compiler's settings after the test."""
    with compiler.patch(
        {
            "cpp.simdlen": None,
            "cpp.march": None,
            "fx_graph_cache": False,
            "cpp_cache_precompile_headers": False,
        }
    ):
        yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("bits", [256])
@COMPILES
def test_the_generated_code_has_vectors_of_that_width(bits: int) -> None:
    if bits not in available_widths():
        pytest.skip(f"this CPU has no vectors of {bits} bits")
    set_vector_width(bits)
    assert hardware.vector_width() == bits
    numbers = torch.arange(1024, dtype=torch.float32)
    result, (code,) = run_and_get_code(torch.compile(lambda x: x * 2 + 1), numbers)
    assert torch.equal(result, numbers * 2 + 1)
    written_out = f"loadu(in_ptr0 + static_cast<int64_t>(x0), static_cast<int64_t>({bits // 32}))" in code
    assert written_out == (pick_vec_isa().bit_width() == bits)
    assert ("at::vec::Vectorized" in code) == written_out
    flags = CppTorchOptions(vec_isa=pick_vec_isa()).get_cflags()
    if not written_out:
        assert "march=x86-64-v2" in flags
    else:
        assert "march=x86-64-v2" not in flags


def test_a_width_that_the_cpu_lacks_is_refused_with_those_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "available_widths", lambda: [128, 256])
    with pytest.raises(ConfigError, match=r"simd_bits: 512 was requested.* vectors of 128, 256 bits"):
        set_vector_width(512)
    assert compiler.cpp.simdlen is None
