"""Prepare the training data as token files, keep them, and reuse them in later runs.

    plan (preparation) -> pieces of text (documents) -> tokens (vocabulary) -> <prepared_directory>/<key>/
                                                        train.bin, validation.bin, and index.json last

The fingerprint is a digest of the tokens themselves, so the same data has the same fingerprint on every
machine and under every path. Reused token files are hashed again, so that the fingerprint is true for the
tokens that are trained on. `batches` draws the samples.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
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
    Portion,
    SkipCount,
    SkipTally,
    skip_sentence,
    unusable_message,
)
from trainyard.training.data.document_reader import Piece, read_pieces
from trainyard.training.data.folders import fill_folder, wait_for_maker
from trainyard.training.data.megatron_index import read_megatron_index
from trainyard.training.data.preparation import Preparation, plans
from trainyard.training.data.token_files import (
    PreparedData,
    TokenFile,
    TokenWriter,
    check_tokens,
    copy_tokens,
    fingerprint_of,
    places_after,
    read_index,
    read_prepared,
    write_dataset_index,
)
from trainyard.training.data.vocabulary import encode_pieces

# All processes but the main one wait this long for it to begin; then one of them prepares the data. Those of
# other machines do so unless they share the folder.
_OTHERS_SECONDS = 5.0
_STARTS_SUFFIX = ".documents"
_logger = logging.getLogger(__name__)


def prepare_data(data: DataConfig, model: ModelConfig, progress: Progress = UNSEEN) -> PreparedData:
    """Prepare the training tokens, or find those of an earlier run; report the bytes to `progress`.

    Raises DataError when the training tokens are shorter than one sequence, ConfigError when the tokenizer
    is unusable.
    """
    start = time.monotonic()
    progress.begin("finding files")
    prepared = _choose_plan(data, model, lambda plan: _find_or_make(plan, progress))
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
    return _choose_plan(data, model, lambda plan: read_prepared(plan.directory))


def prepared_data_of(config_file: Path) -> tuple[str | None, str | None]:
    """The fingerprint of a configuration's prepared tokens, and how they changed since they were prepared.

    Both are None when they are not on this machine. Small files are always hashed again; large ones only if
    they were written to since.
    """
    try:
        config = load_config(config_file).config
        is_here = config.recipe == "pretrain" and Path(config.data.prepared_directory).is_dir()
        if not is_here or config.data.hugging_face.dataset:
            return None, None
        prepared = _choose_plan(config.data, config.model, lambda plan: read_index(plan.directory))
    except (ConfigError, DataError, OSError):
        return None, None
    if prepared is None or not all(file.path.exists() for file in prepared.files):
        return None, None
    changed = next((file.path for file in prepared.files if file.verify() is None), None)
    if changed is None:
        return prepared.fingerprint, None
    return (
        None,
        f"{changed}: its content changed since it was prepared, so the tokens of the run are not known",
    )


def _choose_plan(
    data: DataConfig, model: ModelConfig, found: Callable[[Preparation], PreparedData | None]
) -> PreparedData | None:
    """Apply `found` to the plans in order and take the first result whose validation part is long enough.

    When none is long enough, take the last result, without validation. Raises DataError for too few tokens.
    """
    length = data.sequence_length
    prepared: PreparedData | None = None
    for plan in plans(data, model):
        if (prepared := found(plan)) is None:
            return None
        prepared = replace(prepared, validation_split=plan.split)
        if len(prepared.files) == 2 and all(file.tokens > length for file in prepared.files):
            return prepared
    assert prepared is not None
    if prepared.train.tokens <= length:
        raise _too_short(
            "data.train_path", prepared.name, prepared.train, length=length, skipped=prepared.skipped
        )
    # The files that were skipped may be training data, so they are not named here.
    if prepared.validation is not None and data.validation_path is not None:
        raise _too_short("data.validation_path", data.validation_path, prepared.validation, length=length)
    if data.validation_fraction > 0:
        _logger.warning(
            "no validation: data.validation_fraction %g of the %s tokens of %s is less than one sequence, "
            "which takes %s. Add text, set data.validation_path, raise data.validation_fraction or lower "
            "data.sequence_length.",
            *(data.validation_fraction, f"{prepared.train.tokens:,}", prepared.name, f"{length + 1:,}"),
        )
    return replace(prepared, validation=None, validation_files=0)


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
    prepared = read_prepared(plan.directory)
    if prepared is not None:
        progress.begin("hashing prepared tokens")
        files = [file.verify(progress) for file in prepared.files]
        if None not in files:
            return _note_state(prepared, files, plan.directory)
        _logger.warning(
            "%s: its content has changed since it was prepared, though not its size; preparing it again",
            prepared.files[files.index(None)].path,
        )
    if int(os.environ.get("RANK", "0")) > 0:
        wait_for_maker(plan.directory, seconds=_OTHERS_SECONDS)  # the main process shows the progress
    progress.begin("reading", sum(file.size for file in (*plan.train, *plan.validation)))
    try:
        is_own = fill_folder(plan.directory, lambda folder: _fill(plan, folder, progress), _is_unchanged)
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


def _note_state(prepared: PreparedData, files: list[TokenFile | None], directory: Path) -> PreparedData:
    """Record the state of large files after they were hashed, so that the next run need not hash them."""
    train, validation = (*files, None)[:2]
    assert train is not None
    found = replace(prepared, train=train, validation=validation)
    pairs = zip(prepared.files, found.files, strict=True)
    if any(now.seen != before.seen and now.is_large for before, now in pairs):
        with contextlib.suppress(OSError):  # on a read-only file system they are hashed each time
            write_dataset_index(found, directory)
    return found


def _is_unchanged(directory: Path) -> bool:
    prepared = read_prepared(directory)
    return prepared is not None and all(file.verify() is not None for file in prepared.files)


def _fill(plan: Preparation, folder: Path, progress: Progress) -> None:
    """Write the token files of `plan` into `folder`, then the index."""
    skips = SkipTally(plan.skipped)
    held_out = skips if plan.split == "files" else SkipTally(plan.validation_skipped)
    to_train, to_validate = plan.portions
    train, train_files = _Part(plan, plan.train, folder / "train.bin", skips, to_train, progress).write()
    part = _Part(plan, plan.validation, folder / "validation.bin", held_out, to_validate, progress)
    validation, validation_files = part.write()
    if train is None:
        raise DataError(unusable_message("data.train_path", plan.data.train_path or plan.name, skips))
    if validation is None and plan.data.validation_path is not None:
        raise DataError(unusable_message("data.validation_path", plan.data.validation_path, held_out))
    if plan.split is None:
        skips.include(held_out.summary())
    prepared = PreparedData(
        plan.name,
        fingerprint_of(train, validation),
        train,
        validation,
        train_files=train_files,
        validation_files=validation_files,
        skipped=skips.summary(),
        seconds=0.0,
        reused=False,
    )
    write_dataset_index(prepared, folder)


@dataclass(frozen=True)
class _Part:
    """The training or validation part of a plan: its source files, and the token file that they become."""

    plan: Preparation
    files: tuple[CorpusFile, ...]
    path: Path
    """The token file; the starts of its documents lie beside it."""
    skips: SkipTally
    """Counts the files and rows that are skipped."""
    portion: Portion
    """The part of each file that is read."""
    progress: Progress

    def write(self) -> tuple[TokenFile | None, int]:
        """Write the tokens, None if there are none; return also the number of files they come from."""
        if len(self.files) == 1 and self.files[0].suffix == ".bin":
            found = self._use_in_place(self.files[0])
            return found, int(found is not None)
        if not self.files:
            return None, 0
        dtype = str(np.result_type(*map(self._type_of, self.files)))
        with TokenWriter(self.path, dtype) as writer, self._starts_writer() as starts:
            used = sum(self._append(file, writer, starts) for file in self.files)
            result = replace(writer.finish(), documents=starts.finish() if starts else None)
        return (result, used) if result.tokens else (None, 0)

    def _use_in_place(self, file: CorpusFile) -> TokenFile | None:
        """A single `.bin` file is not copied."""
        found = check_tokens(file.path, self._type_of(file), self.plan.vocab_size, self.progress)
        if not self.portion.is_complete:
            first, end = self.portion.span(found.tokens)
            if first == end:
                return None
            found = found.part(first, end)
        with self._starts_writer() as starts:
            if starts is None:
                return found
            for places in self._starts_in(file):
                starts.write(places)
            return replace(found, documents=starts.finish())

    def _append(self, file: CorpusFile, writer: TokenWriter, starts: TokenWriter | None) -> bool:
        """Write the tokens of `file`, and its document starts to `starts`; return whether it had tokens."""
        before, plan = writer.tokens, self.plan
        if file.suffix == ".bin":
            if starts is not None:
                for places in self._starts_in(file):
                    starts.write(places + before)
            copy_tokens(
                file.path,
                writer,
                dtype=self._type_of(file),
                vocab_size=plan.vocab_size,
                portion=self.portion,
                progress=self.progress,
            )
            return writer.tokens > before
        pieces = read_pieces(file, plan.data.text_field, self.skips, self.portion)
        for tokens, begins in encode_pieces(plan.vocabulary, _report(pieces, file.size, self.progress)):
            if starts is not None and begins:
                starts.write(np.array([writer.tokens]))
            writer.write(tokens)
        return writer.tokens > before

    def _type_of(self, file: CorpusFile) -> str:
        """The type of the tokens of a file. Raises DataError when an index does not fit its `.bin` file."""
        if file.suffix != ".bin":
            return self.plan.vocabulary.dtype
        return read_megatron_index(file.index, file.path).dtype if file.index else self.plan.data.bin_dtype

    def _starts_writer(self) -> AbstractContextManager[TokenWriter | None]:
        """A writer for the document starts; None unless data.packing is `separate`."""
        separate = self.plan.data.packing == "separate"
        return TokenWriter(self.path.with_suffix(_STARTS_SUFFIX), "int64") if separate else nullcontext()

    def _starts_in(self, file: CorpusFile) -> Iterator[Places]:
        """Yield the positions of document starts in a `.bin` file, ascending, in parts.

        Positions count from the start of the portion. Raises ConfigError when they cannot be determined.
        """
        if self.portion.is_complete:
            yield from _starts_of_file(self.plan, file)
            return
        first, end = self.portion.span(file.size // np.dtype(self._type_of(file)).itemsize)
        if first < end:
            yield np.zeros(1, np.int64)  # the rest of a document that was cut
        for places in _starts_of_file(self.plan, file):
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


def _report(pieces: Iterator[Piece], size: int, progress: Progress) -> Iterator[Piece]:
    """Yield the pieces of a file of `size` bytes and report their bytes; report the rest at the end."""
    left = size
    for piece in pieces:
        count = min(left, len(piece or b""))
        left -= count
        progress.advance(count)
        yield piece
    progress.advance(left)
