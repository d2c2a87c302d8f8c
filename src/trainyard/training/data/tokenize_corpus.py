"""Prepare the training data as token files, keep them, and reuse them in later runs.

    plan (preparation) -> pieces of text (documents) -> tokens (vocabulary) -> <prepared_directory>/<key>/
                                                        train.bin, validation.bin, and index.json last

The fingerprint is a digest of the tokens themselves, so the same data has the same fingerprint on every
machine and under every path. Reused token files are hashed again, so that the fingerprint is true for the
tokens that are trained on. `batches` draws the samples.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainyard.config.load import load_config
from trainyard.config.schema import DataConfig, ModelConfig
from trainyard.errors import ConfigError, DataError
from trainyard.run.progress import UNSEEN, Progress
from trainyard.training.data.batches import Places
from trainyard.training.data.corpus import (
    OTHER_SUFFIX,
    CorpusFile,
    SkipCount,
    SkipTally,
    skip_sentence,
    unusable_message,
)
from trainyard.training.data.document_reader import Piece, read_pieces
from trainyard.training.data.folders import fill_folder
from trainyard.training.data.preparation import Preparation, plan_preparation
from trainyard.training.data.token_files import (
    PreparedData,
    TokenFile,
    TokenWriter,
    cut_end,
    fingerprint_of,
    read_index,
    read_prepared,
    read_token_file,
    write_dataset_index,
)
from trainyard.training.data.vocabulary import TokenArray, encode_pieces

_STARTS_SUFFIX = ".documents"
_logger = logging.getLogger(__name__)


def prepare_data(data: DataConfig, model: ModelConfig, progress: Progress = UNSEEN) -> PreparedData:
    """Prepare the training tokens, or find those of an earlier run; report the bytes to `progress`.

    Raises DataError when the training tokens are shorter than one sequence, ConfigError when the tokenizer
    is unusable.
    """
    start = time.monotonic()
    progress.begin("finding files")
    prepared = _find_usable(data, model, lambda plan: _find_or_make(plan, progress))
    assert prepared is not None
    if not prepared.reused:
        for skipped in prepared.skipped:
            level = logging.INFO if skipped.reason == OTHER_SUFFIX else logging.WARNING
            _logger.log(level, "skipped %s", skipped)
    return replace(prepared, seconds=time.monotonic() - start)


def find_prepared_data(data: DataConfig, model: ModelConfig) -> PreparedData | None:
    """The data that is prepared already; None if it has to be prepared. Writes nothing and reads no tokens.

    Raises what `prepare_data` raises.
    """
    return _find_usable(data, model, lambda plan: read_prepared(plan.directory))


def prepared_data_of(config_file: Path) -> tuple[str | None, str | None]:
    """The fingerprint of a configuration's prepared tokens, and how they changed since they were prepared.

    Both are None when they are not on this machine. Small files are always hashed again; large ones only if
    they were written to since they were prepared.
    """
    try:
        config = load_config(config_file).config
        is_here = config.recipe == "pretrain" and Path(config.data.prepared_directory).is_dir()
        if not is_here or config.data.hugging_face.dataset:
            return None, None
        prepared = _find_usable(config.data, config.model, lambda plan: read_index(plan.directory))
    except (ConfigError, DataError, OSError):
        return None, None
    if prepared is None or not all(file.path.exists() for file in prepared.files):
        return None, None
    if (changed := _changed_file(prepared)) is None:
        return prepared.fingerprint, None
    problem = "its content changed since it was prepared, so the tokens of the run are not known"
    return None, f"{changed}: {problem}"


def _find_usable(
    data: DataConfig, model: ModelConfig, found: Callable[[Preparation], PreparedData | None]
) -> PreparedData | None:
    """Apply `found` to the plan; train on everything if what is held out is shorter than a sequence.

    Raises DataError for too few tokens.
    """
    plan, length = plan_preparation(data, model), data.sequence_length
    prepared = found(plan)
    if prepared is None:
        return None
    train, validation = prepared.train, prepared.validation
    if train.tokens <= length:
        raise _too_short("data.train_path", prepared.name, train, length=length, skipped=prepared.skipped)
    if validation is not None and validation.tokens > length:
        return prepared
    # The files that were skipped may be training data, so they are not named here.
    if validation is not None and data.validation_path is not None:
        raise _too_short("data.validation_path", data.validation_path, validation, length=length)
    if plan.split is None:
        return prepared
    tokens = train.tokens + (validation.tokens if validation else 0)
    _logger.warning(
        "no validation: data.validation_fraction %g of the %s tokens of %s is less than one sequence, "
        "which takes %s. Add text, set data.validation_path, raise data.validation_fraction or lower "
        "data.sequence_length.",
        *(data.validation_fraction, f"{tokens:,}", prepared.name, f"{length + 1:,}"),
    )
    return _find_usable(data.model_copy(update={"validation_fraction": 0.0}), model, found)


def _too_short(
    key: str, name: str, file: TokenFile, *, length: int, skipped: tuple[SkipCount, ...] = ()
) -> DataError:
    return DataError(
        f"{key}: {name} has {file.tokens:,} tokens, less than one sequence, which takes {length + 1:,} "
        f"(data.sequence_length {length:,} and the token after it).{skip_sentence(skipped)} Add data, or "
        "lower data.sequence_length."
    )


def _find_or_make(plan: Preparation, progress: Progress) -> PreparedData:
    """The data that an earlier run prepared, if its token files have not changed since; else prepare it."""

    def is_ready(directory: Path) -> bool:
        if (prepared := read_prepared(directory)) is None:
            return False
        progress.begin("hashing prepared tokens")
        return _changed_file(prepared, progress) is None

    def fill(folder: Path) -> None:
        if (before := read_prepared(plan.directory)) is not None:
            _logger.warning(
                "%s: its content has changed since it was prepared, though not its size; preparing it again",
                _changed_file(before),
            )
        progress.begin("reading", plan.size)
        _fill(plan, folder, progress)

    try:
        is_own = fill_folder(plan.directory, fill, is_ready)
    except OSError as error:
        raise DataError(
            f"{plan.directory}: the tokens could not be prepared ({error}). "
            "Free space, or set data.prepared_directory to a folder that can be written."
        ) from None
    if (prepared := read_prepared(plan.directory)) is None:
        raise DataError(
            f"{plan.directory}: the prepared tokens are gone or damaged. Remove it and try again."
        )
    return replace(prepared, reused=not is_own)


def _changed_file(prepared: PreparedData, progress: Progress = UNSEEN) -> Path | None:
    """The first token file with another content than was written."""
    return next((file.path for file in prepared.files if not file.verify(progress)), None)


def _fill(plan: Preparation, folder: Path, progress: Progress) -> None:
    """Write the token files of `plan` into `folder`, then the index."""
    skips, held_out = SkipTally(plan.skipped), SkipTally(plan.validation_skipped)

    def write_part(
        path: Path, files: tuple[CorpusFile, ...], tally: SkipTally
    ) -> tuple[TokenFile | None, int]:
        """The token file of one part, None if it has no tokens, and the number of files it comes from."""
        if not files:
            return None, 0
        types = (plan.data.bin_dtype if file.suffix == ".bin" else plan.vocabulary.dtype for file in files)
        # With `separate`, the positions at which documents start lie beside the tokens.
        starts_path = path.with_suffix(_STARTS_SUFFIX) if plan.data.packing == "separate" else None
        with (
            TokenWriter(path, str(np.result_type(*types))) as writer,
            TokenWriter(starts_path, "int64") if starts_path else nullcontext() as starts_writer,
        ):
            used = 0
            for file in files:
                before = writer.tokens
                for tokens, starts in _read_tokens(plan, file, tally, progress):
                    if starts_writer is not None:
                        starts_writer.write(starts + writer.tokens)
                    writer.write(tokens)
                used += writer.tokens > before
            documents = starts_writer.finish() if starts_writer is not None else None
            written = replace(writer.finish(), documents=documents)
        return (written, used) if written.tokens else (None, 0)

    train, train_files = write_part(folder / "train.bin", plan.train, skips)
    validation, validation_files = write_part(folder / "validation.bin", plan.validation, held_out)
    if train is None:
        raise DataError(unusable_message("data.train_path", plan.data.train_path or plan.name, skips))
    if validation is None and plan.data.validation_path is not None:
        raise DataError(unusable_message("data.validation_path", plan.data.validation_path, held_out))
    if plan.split == "within":
        train, validation = cut_end(train, plan.data.validation_fraction, folder / "validation.bin")
    skips.include(held_out.summary())
    prepared = PreparedData(
        plan.name,
        fingerprint_of(train, validation),
        train,
        validation,
        train_files=train_files,
        validation_files=validation_files,
        skipped=skips.summary(),
        validation_split=plan.split,
    )
    write_dataset_index(prepared, folder)


def _read_tokens(
    plan: Preparation, file: CorpusFile, skips: SkipTally, progress: Progress
) -> Iterator[tuple[TokenArray, Places]]:
    """Yield the tokens of `file` in parts, and the places in each part where a document starts.

    Raises ConfigError for bare tokens whose documents are to be kept apart, but end at an unknown token.
    """
    if file.suffix != ".bin":
        pieces = read_pieces(file, plan.data.text_field, skips)
        for tokens, begins in encode_pieces(plan.vocabulary, _report(pieces, file.size, progress)):
            yield tokens, np.zeros(int(begins), np.int64)
        return
    # The id of the end-of-document token is only known for bytes, or if the tokenizer is configured.
    known = plan.vocabulary.digest != "bytes" or plan.vocab_size == plan.vocabulary.size
    end = plan.vocabulary.eos if known else None
    if end is None and plan.data.packing == "separate":
        raise ConfigError(
            f"data.packing: where the documents in {file.path} end is not known. Set model.tokenizer to the "
            "one they were written with, which must have an end-of-document token, or set data.packing to "
            "concatenate."
        )
    begins = True
    for tokens in read_token_file(
        file.path, dtype=plan.data.bin_dtype, vocab_size=plan.vocab_size, progress=progress
    ):
        is_end = tokens == end if end is not None else np.zeros(tokens.size, np.bool_)
        yield tokens, np.flatnonzero(np.concatenate(([begins], is_end[:-1])))
        begins = bool(is_end[-1])


def _report(pieces: Iterator[Piece], size: int, progress: Progress) -> Iterator[Piece]:
    """Yield the pieces of a file of `size` bytes and report their bytes; report the rest at the end."""
    left = size
    for piece in pieces:
        count = min(left, len(piece or b""))
        left -= count
        progress.advance(count)
        yield piece
    progress.advance(left)
