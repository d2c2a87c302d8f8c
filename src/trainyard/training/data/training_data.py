"""The training data of a run: prepared token files, or a stream that is read during training."""

from trainyard.config.schema import DataConfig, ModelConfig
from trainyard.errors import DataError
from trainyard.run.progress import UNSEEN, Progress
from trainyard.training.data.batches import TokenBatches
from trainyard.training.data.hugging_face import StreamedData, open_stream
from trainyard.training.data.stream_batches import StreamBatches
from trainyard.training.data.token_files import PreparedData
from trainyard.training.data.tokenize_corpus import find_prepared_data, prepare_data
from trainyard.training.runtime.world import World

TrainingData = PreparedData | StreamedData  # tokens that are ready to train on
# Training samples by step, each a function of the step number; `share` says what a process gets.
Batches = TokenBatches | StreamBatches


def ready_data(data: DataConfig, model: ModelConfig, progress: Progress = UNSEEN) -> TrainingData:
    """Prepare or open the data of a run. Raises what `prepare_data` and `open_stream` raise."""
    if data.hugging_face.dataset:
        progress.begin(f"opening {data.hugging_face.dataset}")
        return open_stream(data, model)
    return prepare_data(data, model, progress)


def data_at_hand(data: DataConfig, model: ModelConfig) -> TrainingData | None:
    """Like `ready_data`, but write nothing; return None when the data has to be prepared first."""
    return open_stream(data, model) if data.hugging_face.dataset else find_prepared_data(data, model)


def agreed_fingerprint(data: TrainingData, world: World) -> str:
    """Compare the fingerprint of `data` over all machines and return it.

    One process per machine computes it, which may read all of the data. Raises DataError when a machine has
    other data than the first, because each process takes its share of the same data.
    """
    found = world.gather(data.fingerprint if world.local_rank == 0 else None)
    first: str = found[0]
    other = next((rank for rank, its in enumerate(found) if its not in (first, None)), None)
    if other is not None:
        raise DataError(
            f"Rank {other} found other data than rank 0 (fingerprints {found[other][:12]}… and "
            f"{first[:12]}…). Give every machine the same files, or set data.hugging_face.revision "
            "to one commit. Nothing was started."
        )
    return first
