"""The training data as token files: made once, kept, found again.

    plan (preparation) -> pieces of text (documents) -> tokens (vocabulary) -> <prepared_directory>/<key>/
                                                        train.bin, validation.bin, and index.json last

The fingerprint is of the tokens themselves: the same data has it on every machine and under every path. Token
files that are found again are hashed again, so that what is trained on is what the fingerprint says.
Drawing samples is the affair of `batches`.
"""

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainyard.config.schema import DataConfig, ModelConfig
from trainyard.errors import DataError
from trainyard.run.progress import UNSEEN, Progress
from trainyard.training.corpus import OTHER_SUFFIX, CorpusFile, nothing_usable
from trainyard.training.document_starts import encoded, starts_in
from trainyard.training.documents import Piece, read_pieces
from trainyard.training.folders import make_folder, wait_for_maker
from trainyard.training.megatron_index import read_index
from trainyard.training.preparation import Preparation, plan_preparation
from trainyard.training.prepared import PreparedData, fingerprint_of, read_prepared, write_index
from trainyard.training.skipped import Skipped, SkipTally, passed_over
from trainyard.training.token_files import TokenFile, TokenWriter, check_tokens, copy_tokens

_OTHERS_SECONDS = 5.0
"""How long the other processes of a machine wait for the first to begin, before each prepares for itself."""
_STARTS_SUFFIX = ".documents"
_logger = logging.getLogger(__name__)


def prepare_data(data: DataConfig, model: ModelConfig, progress: Progress = UNSEEN) -> PreparedData:
    """The tokens to train on, made now or found from an earlier run; `progress` is told of the bytes.

    Raises DataError when less than one sequence is left to train on, ConfigError when the tokenizer is
    unusable.
    """
    start = time.monotonic()
    progress.begin("finding files")
    plan = plan_preparation(data, model)
    prepared = _find(plan.directory, progress)
    if prepared is None and int(os.environ.get("LOCAL_RANK", "0")) > 0:
        wait_for_maker(plan.directory, seconds=_OTHERS_SECONDS)  # the first process of this machine
        prepared = _find(plan.directory, progress)
    reused = prepared is not None
    if not reused:
        progress.begin("reading", plan.size)
        _make(plan, progress)
        prepared = read_prepared(plan.directory)
    if prepared is None:
        raise DataError(
            f"{plan.directory}: the prepared tokens are gone or damaged. Remove it and try again."
        )
    if not reused:
        for skipped in prepared.skipped:
            level = logging.INFO if skipped.reason == OTHER_SUFFIX else logging.WARNING
            _logger.log(level, "passed over %s", skipped)
    prepared = replace(prepared, reused=reused, seconds=time.monotonic() - start)
    return _long_enough(prepared, data)


def prepared_before(data: DataConfig, model: ModelConfig) -> PreparedData | None:
    """What is prepared already; None if it has to be prepared. Nothing is written, no token is read.

    Raises what `prepare_data` raises.
    """
    prepared = read_prepared(plan_preparation(data, model).directory)
    return None if prepared is None else _long_enough(prepared, data)


def _find(directory: Path, progress: Progress) -> PreparedData | None:
    """What an earlier run prepared; None, with a warning, if its token files have other bytes now."""
    prepared = read_prepared(directory)
    if prepared is None:
        return None
    progress.begin("hashing prepared tokens")
    train = prepared.train.verified(progress)
    validation = prepared.validation and prepared.validation.verified(progress)
    for before, now in ((prepared.train, train), (prepared.validation, validation)):
        if before is not None and now is None:
            _logger.warning(
                "%s: its content is no longer what was prepared, though its size is; preparing anew",
                before.path,
            )
            return None
    assert train is not None
    found = replace(prepared, train=train, validation=validation)
    _remember(prepared, found, directory)
    return found


def _remember(before: PreparedData, now: PreparedData, directory: Path) -> None:
    """Note how large token files are seen now, so that they need not be hashed the next time."""
    pairs = ((before.train, now.train), (before.validation, now.validation))
    if any(old and new and new.is_large and old.seen != new.seen for old, new in pairs):
        with contextlib.suppress(OSError):  # on a medium that is read only, they are hashed each time
            write_index(now, directory)


def _make(plan: Preparation, progress: Progress) -> None:
    try:
        make_folder(plan.directory, lambda folder: _fill(plan, folder, progress), _is_whole)
    except OSError as error:
        raise DataError(
            f"{plan.directory}: the tokens could not be prepared ({error}). "
            "Free space, or set data.prepared_directory to a folder that can be written."
        ) from None


def _fill(plan: Preparation, folder: Path, progress: Progress) -> None:
    """Write the token files of `plan` into `folder`, then the index."""
    skips = SkipTally(plan.skipped)
    held_out = skips if plan.data.validation_path is None else SkipTally(plan.validation_skipped)
    train, train_files = _token_file(
        plan, plan.train, path=folder / "train.bin", skips=skips, progress=progress
    )
    validation, files = _token_file(
        plan, plan.validation, path=folder / "validation.bin", skips=held_out, progress=progress
    )
    if train is None:
        raise DataError(nothing_usable("data.train_path", plan.data.train_path or plan.name, skips))
    if validation is None and plan.data.validation_path is not None:
        raise DataError(nothing_usable("data.validation_path", plan.data.validation_path, held_out))
    if held_out is not skips:
        skips.include(held_out.summary())
    prepared = PreparedData(
        plan.name,
        fingerprint_of(train, validation),
        train,
        validation,
        train_files=train_files,
        validation_files=files,
        skipped=skips.summary(),
        seconds=0.0,
        reused=False,
    )
    write_index(prepared, folder)


def _token_file(
    plan: Preparation, files: tuple[CorpusFile, ...], *, path: Path, skips: SkipTally, progress: Progress
) -> tuple[TokenFile | None, int]:
    """The tokens of `files`, or None if they have none, and how many files they are of.

    A single `.bin` file is used where it lies.
    """
    bins = [file for file in files if file.suffix == ".bin"]
    if len(files) == len(bins) == 1:
        found = check_tokens(bins[0].path, _stored_type(plan, bins[0]), plan.vocab_size, progress)
        return replace(found, documents=_write_starts(plan, bins[0], path)), 1
    types = [plan.vocabulary.dtype] * (len(files) > len(bins)) + [_stored_type(plan, file) for file in bins]
    if not types:
        return None, 0
    with TokenWriter(path, str(np.result_type(*types))) as writer, _starts_writer(plan, path) as starts:
        used = _write_files(plan, files, writers=(writer, starts), skips=skips, progress=progress)
        result = replace(writer.finish(), documents=None if starts is None else starts.finish())
    return (result, used) if result.tokens else (None, 0)


def _starts_writer(plan: Preparation, path: Path) -> AbstractContextManager[TokenWriter | None]:
    """Writes where the documents of the token file `path` begin, if they are to be kept apart."""
    separate = plan.data.packing == "separate"
    return TokenWriter(path.with_suffix(_STARTS_SUFFIX), "int64") if separate else nullcontext()


def _write_starts(plan: Preparation, file: CorpusFile, path: Path) -> TokenFile | None:
    """Where the documents of a `.bin` file that is used where it lies begin, beside `path`."""
    with _starts_writer(plan, path) as writer:
        if writer is None:
            return None
        for places in starts_in(plan, file):
            writer.write(places)
        return writer.finish()


def _write_files(
    plan: Preparation,
    files: tuple[CorpusFile, ...],
    *,
    writers: tuple[TokenWriter, TokenWriter | None],
    skips: SkipTally,
    progress: Progress,
) -> int:
    """Write the tokens of `files`, and where documents begin if there is a second writer.

    Returns how many files had any: what is passed over is in `skips`.
    """
    writer, starts = writers
    used = 0
    for file in files:
        before = writer.tokens
        if file.suffix == ".bin":
            if starts is not None:
                for places in starts_in(plan, file):
                    starts.write(places + writer.tokens)
            stored = _stored_type(plan, file)
            copy_tokens(file.path, writer, dtype=stored, vocab_size=plan.vocab_size, progress=progress)
        else:
            pieces = _told(read_pieces(file, plan.data.text_field, skips), file.size, progress)
            for tokens, begins in encoded(plan.vocabulary, pieces):
                if starts is not None and begins:
                    starts.write(np.array([writer.tokens]))
                writer.write(tokens)
        used += writer.tokens > before
    return used


def _told(pieces: Iterator[Piece], size: int, progress: Progress) -> Iterator[Piece]:
    """The pieces of a file of `size` bytes, told as they pass by; what is no text of it, at its end."""
    left = size
    for piece in pieces:
        count = min(left, len(piece or b""))
        left -= count
        progress.advance(count)
        yield piece
    progress.advance(left)


def _stored_type(plan: Preparation, file: CorpusFile) -> str:
    """The type of the tokens in a `.bin` file. Raises DataError when its index does not fit it."""
    return read_index(file.index, file.path).dtype if file.index else plan.data.bin_dtype


def _is_whole(directory: Path) -> bool:
    prepared = read_prepared(directory)
    if prepared is None or prepared.train.verified() is None:
        return False
    return prepared.validation is None or prepared.validation.verified() is not None


def _long_enough(prepared: PreparedData, data: DataConfig) -> PreparedData:
    """`prepared`, without a validation part that was held out but is shorter than a sequence."""
    length = data.sequence_length
    if prepared.train.tokens <= length:
        what = f"data.train_path: {prepared.name} has {prepared.train.tokens:,} tokens"
        raise DataError(_too_short(what, prepared.skipped, length))
    if prepared.validation is not None and prepared.validation.tokens <= length:
        if data.validation_path is not None:
            what = f"data.validation_path: {data.validation_path} has {prepared.validation.tokens:,} tokens"
            raise DataError(_too_short(what, (), length))  # what was passed over may be training data
        prepared = replace(prepared, validation=None, validation_files=0)
    if prepared.validation is None and data.validation_fraction > 0:
        _logger.warning(
            "no validation: what could be held out of the %s files of %s is shorter than a sequence; "
            "set data.validation_path",
            f"{prepared.train_files:,}",
            prepared.name,
        )
    return prepared


def _too_short(what: str, skipped: tuple[Skipped, ...], length: int) -> str:
    return (
        f"{what}, less than one sequence (data.sequence_length {length:,} and the token after it)."
        f"{passed_over(skipped)} Add data, or lower data.sequence_length."
    )
