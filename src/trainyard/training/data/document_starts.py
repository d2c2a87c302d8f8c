"""Find the document starts among tokens: record them while encoding text, or search pre-tokenised files.

It is used only when documents are kept apart (`data.packing`).
"""

from collections import deque
from collections.abc import Iterator

import numpy as np

from trainyard.errors import ConfigError
from trainyard.training.data.batches import Places
from trainyard.training.data.corpus import CorpusFile
from trainyard.training.data.document_reader import Piece
from trainyard.training.data.megatron_index import read_megatron_index
from trainyard.training.data.preparation import Preparation
from trainyard.training.data.token_files import places_after
from trainyard.training.data.validation_split import Portion
from trainyard.training.data.vocabulary import TokenArray, Vocabulary


def encode_pieces(vocabulary: Vocabulary, pieces: Iterator[Piece]) -> Iterator[tuple[TokenArray, bool]]:
    """Yield the tokens of each piece, and whether a document begins with them.

    There is one array of tokens per piece, but the vocabulary may read pieces ahead of the arrays it yields.
    """
    begins: deque[bool] = deque()

    def note_starts() -> Iterator[Piece]:
        is_new = True
        for piece in pieces:
            begins.append(is_new)
            is_new = piece is None
            yield piece

    for tokens in vocabulary.token_arrays(note_starts()):
        yield tokens, begins.popleft()


def starts_in(plan: Preparation, file: CorpusFile, portion: Portion) -> Iterator[Places]:
    """Yield the positions of document starts in a `.bin` file, ascending, in parts.

    Positions count from the start of the portion. Raises ConfigError when the starts cannot be determined.
    """
    if portion.is_complete:
        yield from _starts_of_file(plan, file)
        return
    dtype = read_megatron_index(file.index, file.path).dtype if file.index else plan.data.bin_dtype
    first, end = portion.span(file.size // np.dtype(dtype).itemsize)
    if first < end:
        yield np.zeros(1, np.int64)  # the rest of a document that was cut
    for places in _starts_of_file(plan, file):
        yield places[(places > first) & (places < end)] - first


def _starts_of_file(plan: Preparation, file: CorpusFile) -> Iterator[Places]:
    if file.index is not None:
        yield from read_megatron_index(file.index, file.path).document_starts()
        return
    # For tokens that are not bytes, the end-of-document token is only known if the tokenizer is configured.
    known = plan.vocabulary.digest != "bytes" or plan.vocab_size == plan.vocabulary.size
    if plan.vocabulary.eos is None or not known:
        raise ConfigError(
            f"data.packing: where the documents in {file.path} end is not known. Set model.tokenizer to the "
            "one they were written with, which must have an end-of-document token, take a Megatron dataset, "
            "or set data.packing to concatenate."
        )
    yield np.zeros(1, np.int64)
    yield from places_after(file.path, plan.data.bin_dtype, plan.vocabulary.eos)
