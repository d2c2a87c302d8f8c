from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.training.lab import Lab
from tests.unit.training.model.worlds import SMALL
from torch import Tensor, nn

from trainyard.errors import IncompatibleCheckpointError, StoppedError
from trainyard.run.records import read_rows
from trainyard.training.data.batches import TokenBatches, count_targets, first_windows, plain_ids
from trainyard.training.model.attention import causal_attention, unpack, unseen_keys, written_out_attention
from trainyard.training.model.loss import summed_loss
from trainyard.training.model.model import Llama, build_model
from trainyard.training.run.validation import Validation
from trainyard.training.runtime.world import ALONE, DataShare


def heads(*, queries: int, keys: int, length: int = 7, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(2, count, length, 8) for count in (queries, keys, keys)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (4, 2), (6, 1)])
def test_written_out_it_is_the_fused_kernel_forward_and_backward(queries: int, keys: int) -> None:
    results = []
    for attention in (causal_attention, written_out_attention):
        parts = heads(queries=queries, keys=keys)
        mixed = attention(*parts)
        mixed.square().sum().backward()  # type: ignore[no-untyped-call]
        results.append([mixed, *(part.grad for part in parts)])
    for fused, written in zip(*results, strict=True):
        torch.testing.assert_close(fused, written)


def test_a_query_sees_the_keys_that_it_may() -> None:
    document = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    visible = (document[:, None] == document).tril().expand(2, 1, 7, 7)
    parts = heads(queries=4, keys=2)
    both: list[Callable[..., Tensor]] = [causal_attention, written_out_attention]
    for attention in both:
        apart = [attention(*(part[:, :, at] for part in parts)) for at in (slice(4), slice(4, 7))]
        torch.testing.assert_close(attention(*parts, visible), torch.cat(apart, dim=2))
    q, k, v = heads(queries=4, keys=2, dtype=torch.float32)
    table = unseen_keys(9)[:7, :7]  # a table to add hides the same keys, to the bit
    assert torch.equal(written_out_attention(q, k, v, table), written_out_attention(q, k, v))
    torch.testing.assert_close(causal_attention(q, k, v, table), causal_attention(q, k, v))


def test_of_the_scores_only_the_shares_are_kept_in_the_precision_of_the_values() -> None:
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    q, k, v = heads(queries=4, keys=4, length=32, dtype=torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(keep, keep), torch.autocast("cpu", torch.bfloat16):
        written_out_attention(q, k, v, unseen_keys(32))
    of_pairs = [tensor for tensor in kept if tensor.numel() == 2 * 4 * 32 * 32]
    assert of_pairs
    assert {tensor.dtype for tensor in of_pairs} == {torch.bfloat16}
    assert len({tensor.untyped_storage().data_ptr() for tensor in of_pairs}) == 1


def test_it_is_written_out_for_the_compiler_of_the_cpu_while_the_scores_are_small() -> None:
    graphs: list[set[str]] = []

    def record_graph(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append({getattr(node.target, "__name__", str(node.target)) for node in graph.graph.nodes})
        return graph

    for length in (512, 513):
        compiled = torch.compile(causal_attention, backend=record_graph, dynamic=False)
        compiled(*heads(queries=1, keys=1, length=length, dtype=torch.float32))
    short, long = graphs
    assert "softmax" in short
    assert "scaled_dot_product_attention" not in short
    assert "scaled_dot_product_attention" in long


LENGTH = SMALL.max_position_embeddings


@pytest.fixture(scope="module")
def model() -> Llama:
    """A model with weights large enough for the context of a token to matter."""
    built = build_model(SMALL, seed=3)
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.ndim == 2:
                parameter.mul_(10)
    built.model.separates_documents = True
    return built


def marked_sample(tokens: Tensor, starts: list[list[int]]) -> Tensor:
    result = tokens.clone()
    for row, places in enumerate(starts):
        result[row, places] = ~result[row, places]
    return result


def samples(starts: list[list[int]]) -> Tensor:
    """Marked samples `[batch, LENGTH + 1]`."""
    generator = torch.Generator().manual_seed(0)
    return marked_sample(torch.randint(0, 64, (len(starts), LENGTH + 1), generator=generator), starts)


def documents_of(row: Tensor) -> list[Tensor]:
    """The documents `[seq]` of a marked sample, unmarked."""
    ids = torch.where(row < 0, ~row, row)
    bounds = [0, *[place for place in range(1, len(row)) if row[place] < 0], len(row)]
    return [ids[start:end] for start, end in pairwise(bounds)]


def gradients(model: nn.Module) -> list[Tensor]:
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    return found


STARTS = [[0, 5, 6, 11], [3], [], [0, 16], [1, 2, 3, 15]]


def test_marks_give_ids_positions_and_a_mask() -> None:
    tokens, positions, mask = unpack(torch.tensor([[~7, 8, ~9, 1, 2], [3, 4, 5, ~6, ~7]]))
    assert tokens.tolist() == [[7, 8, 9, 1, 2], [3, 4, 5, 6, 7]]
    assert positions.tolist() == [[0, 1, 0, 1, 2], [0, 1, 2, 0, 0]]
    visible = ["".join(map(str, row)) for row in mask[0, 0].int().tolist()]
    assert visible == ["10000", "11000", "00100", "00110", "00111"]


@pytest.mark.parametrize("bfloat16", [False, True])
def test_packed_documents_have_the_logits_they_have_alone(model: Llama, bfloat16: bool) -> None:
    batch = samples(STARTS)[:, :-1]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        together = model(batch)
        for row, logits in zip(batch, together, strict=True):
            alone = torch.cat([model(document[None])[0] for document in documents_of(row)])
            rtol, atol = (0.05, 0.2) if bfloat16 else (1e-5, 1e-4)
            torch.testing.assert_close(logits, alone, rtol=rtol, atol=atol)
        joined = model(torch.where(batch < 0, ~batch, batch))
    assert (joined - together).abs().max() > 1  # joined documents give other logits


def test_the_loss_and_its_gradients_are_those_of_the_documents_alone(model: Llama) -> None:
    batch = samples(STARTS)
    total = summed_loss(model(batch[:, :-1]), batch[:, 1:])
    total.backward()  # type: ignore[no-untyped-call]
    together, alone, targets = gradients(model), torch.zeros(()), 0
    for document in (part for row in batch for part in documents_of(row) if len(part) > 1):
        loss = summed_loss(model(document[None, :-1]), document[None, 1:])
        loss.backward()  # type: ignore[no-untyped-call]
        alone += loss.detach()
        targets += len(document) - 1
    torch.testing.assert_close(total, alone)
    for one, other in zip(together, gradients(model), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert count_targets(batch.numpy()) == targets


def test_a_sample_that_is_one_document_is_what_it_is_without_marks(model: Llama) -> None:
    tokens = torch.randint(0, 64, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    model.model.separates_documents = False
    usual = model(tokens)
    model.model.separates_documents = True
    torch.testing.assert_close(model(marked_sample(tokens, [[0], [], [0]])), usual)


@given(
    st.lists(st.integers(0, 60), max_size=20).map(lambda places: sorted(set(places))),
    st.integers(2, 9),
    st.integers(0, 30),
)
def test_batches_and_windows_mark_the_starts_of_documents_and_nothing_else(
    places: list[int], length: int, step: int
) -> None:
    tokens, documents = np.arange(61, dtype=np.uint16), np.array(places, np.int64)
    usual, batch = (
        TokenBatches(tokens, sequence_length=length, batch_size=3, seed=5, documents=known).batch(step)
        for known in (None, documents)
    )
    assert plain_ids(batch).tolist() == usual.tolist()
    assert (batch < 0).tolist() == np.isin(usual, places).tolist()
    windows = first_windows(tokens, length=length, count=4, documents=documents)
    assert (windows < 0).tolist() == np.isin(plain_ids(windows), places).tolist()
    assert plain_ids(windows).tolist() == first_windows(tokens, length=length, count=4).tolist()


def test_bytes_of_validation_are_those_of_the_targets_that_count() -> None:
    batch = np.array([[~65, 66, ~67, 68, ~69], [70, 71, 72, ~73, 74]])
    requested: list[list[int]] = []

    def text_bytes(tokens: np.ndarray) -> int:
        requested.append(tokens.tolist())
        return tokens.size

    logits = torch.zeros(2, 4, 128)
    result = Validation([batch], text_bytes=text_bytes).run(lambda _: logits, lambda: None, DataShare(ALONE))
    assert requested == [[66], [68], [71, 72], [74]]
    assert result is not None
    assert result["val_loss"] == pytest.approx(np.log(128), rel=1e-5)
    assert result["val_bits_per_byte"] == pytest.approx(7, rel=1e-5)


def test_accumulation_does_not_change_the_numbers_though_counts_are_uneven(lab: Lab) -> None:
    (lab.folder / "rows").mkdir()
    lines = [f'{{"text": "{"row " * (number % 9)}{number}"}}\n' for number in range(300)]
    (lab.folder / "rows" / "a.jsonl").write_text("".join(lines))
    data = {"train_path": str(lab.folder / "rows"), "packing": "separate"}
    losses = []
    for size, accumulation in ((4, 1), (1, 4)):
        training = {"batch_size": size, "gradient_accumulation_steps": accumulation, "max_steps": 6}
        lab.run(lab.config(training=training, data=data), f"by-{size}")
        losses.append([row["loss"] for row in read_rows(lab.folder / f"by-{size}" / "metrics.jsonl")])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    joined = lab.config(training={"max_steps": 6}, data={**data, "packing": "concatenate"})
    lab.run(joined, "joined")
    assert [row["loss"] for row in lab.rows("joined")] != losses[0]


def test_a_resume_keeps_the_packing_and_the_numbers(lab: Lab) -> None:
    config = lab.config(data={"packing": "separate"}, compute={"activation_checkpointing": "selective"})
    uninterrupted = lab.run(config, "uninterrupted")
    with pytest.raises(StoppedError):
        lab.run(config, "cut", **lab.stop_after(5))
    with pytest.raises(IncompatibleCheckpointError, match=r"data\.packing: the checkpoint has separate"):
        lab.run(lab.config(), "cut")
    assert lab.run(config, "cut")["state_sha256"] == uninterrupted["state_sha256"]
