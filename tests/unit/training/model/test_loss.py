"""The loss against torch's own, a few rows at a time, and what it keeps."""

import pytest
import torch
from tests.conditions import COMPILES
from torch import Tensor
from torch.nn import functional

from trainyard.training.model import loss
from trainyard.training.model.loss import LossKernels, compiled_kernels, summed_loss

WORDS = 11


def example(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Logits of 3 × 5 tokens and their targets; two targets do not count."""
    generator = torch.Generator().manual_seed(3)
    logits = (4 * torch.randn(3, 5, WORDS, generator=generator)).to(dtype).requires_grad_()
    targets = torch.randint(0, WORDS, (3, 5), generator=generator)
    targets[0, 0], targets[2, 3] = -1, -7
    return logits, targets


def gradient(logits: Tensor, total: Tensor) -> Tensor:
    (total / 13).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    return logits.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_torchs_cross_entropy_forward_and_backward(dtype: torch.dtype) -> None:
    logits, targets = example(dtype)
    total = summed_loss(logits, targets)
    again = logits.detach().clone().requires_grad_()
    expected = functional.cross_entropy(
        again.float().flatten(0, 1), targets.clamp(min=-1).flatten(), reduction="sum", ignore_index=-1
    )
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(gradient(logits, total), gradient(again, expected))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize(
    ("dtype", "compiled"),
    [
        (torch.float32, False),
        (torch.bfloat16, False),
        pytest.param(torch.bfloat16, True, marks=[pytest.mark.slow, COMPILES]),
    ],
)
def test_one_pass_over_all_rows_gives_the_values_of_a_few_rows_at_a_time(
    dtype: torch.dtype, compiled: bool
) -> None:
    """The kernel for GPUs; here the compiler builds it for the CPU, or it runs uncompiled."""
    kernels = LossKernels(loss._row_sums, loss._row_gradients)
    logits, targets = example(dtype)
    total = summed_loss(logits, targets, compiled_kernels() if compiled else kernels)
    again = logits.detach().clone().requires_grad_()
    expected = summed_loss(again, targets)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(gradient(logits, total), gradient(again, expected))


def test_how_many_rows_it_takes_at_a_time_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for at_once in (100, 1, 4, 15):
        monkeypatch.setattr(loss, "ROWS_BYTES", (4 * WORDS * at_once,) * 2)
        logits, targets = example()
        total = summed_loss(logits, targets)
        results.append((total, gradient(logits, total)))
    for total, some in results[1:]:
        assert torch.equal(total, results[0][0])
        assert torch.equal(some, results[0][1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_leaves_the_logits_as_they_are_and_keeps_no_copy_of_them(dtype: torch.dtype) -> None:
    logits, targets = example(dtype)
    before, kept = logits.detach().clone(), list[Tensor]()

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        total = summed_loss(logits, targets)
    assert gradient(logits, total).dtype == dtype
    assert torch.equal(logits, before)
    large = [tensor for tensor in kept if tensor.numel() == logits.numel()]
    assert [tensor.untyped_storage().data_ptr() for tensor in large] == [logits.untyped_storage().data_ptr()]


def test_logits_too_large_for_an_exponential_have_a_finite_loss() -> None:
    logits = torch.tensor([[[1000.0, -1000.0], [-1000.0, 1000.0]]], requires_grad=True)
    total = summed_loss(logits, torch.tensor([[0, 0]]))
    assert total.item() == 2000
    assert torch.equal(gradient(logits, total), torch.tensor([[[0.0, 0], [-1, 1]]]) / 13)
