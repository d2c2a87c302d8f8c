"""The shape of the configuration: sections, keys, types, ranges, defaults.

It reads no file (`load` does) and judges no two values together (`combinations` does). A part of the program
receives its own section, frozen, never the whole.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from trainyard.config.cluster import ClusterConfig
from trainyard.config.grpo import GrpoConfig
from trainyard.config.section import (
    LONGEST_TEXT,
    MOST,
    Fraction,
    Name,
    NotNegative,
    Positive,
    Section,
)


class RopeScalingConfig(Section):
    """Rotary positions stretched beyond the length that a model was first trained on."""

    rope_type: Literal["default", "llama3"] = "default"
    """default: plain, other keys have no effect; llama3: slow turns are divided by factor, fast ones kept."""
    factor: Annotated[float, Field(ge=1)] = 8.0
    """What the slowest turns are divided by."""
    low_freq_factor: Annotated[float, Field(gt=0)] = 1.0
    """Fewer turns than this within the original length are slow."""
    high_freq_factor: Annotated[float, Field(gt=0)] = 4.0
    """More turns than this within the original length are fast."""
    original_max_position_embeddings: Positive = 8192
    """The original length, in tokens."""


class ArchitectureConfig(Section):
    """The shape of a Llama-family model. The default is the small byte-level one of `configs/smoke.yaml`."""

    vocab_size: Positive = 256
    """Token ids; 256 for bytes."""
    hidden_size: Positive = 128
    """Width of the residual stream."""
    intermediate_size: Positive = 352
    """Width of the SwiGLU layer."""
    num_layers: Positive = 4
    """Transformer blocks."""
    num_attention_heads: Positive = 4
    """Query heads; hidden_size is shared out among them."""
    num_key_value_heads: Positive = 2
    """Fewer than the attention heads: grouped-query attention."""
    max_position_embeddings: Positive = 2048
    """Longest sequence the model is built for, in tokens."""
    rope_theta: Annotated[float, Field(gt=0)] = 10000.0
    """Base of the rotary positions."""
    rms_norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    """Added to the mean square before the root."""
    tie_word_embeddings: bool = False
    """The output layer shares the weights of the input embedding."""
    initializer_range: Annotated[float, Field(gt=0)] = 0.02
    """Standard deviation of the random start."""
    rope_scaling: RopeScalingConfig = Field(default_factory=RopeScalingConfig)
    """Stretching of the rotary positions, as Llama 3.1 and 3.2 have it."""


class ModelConfig(Section):
    """Which model, from which weights, on which device."""

    name: Name
    """What people call it; it has no effect."""
    path: Name | None = None
    """Weights to start from; null starts from random ones drawn from training.seed."""
    tokenizer: Name | None = None
    """A Hugging Face tokenizer.json; null trains on bytes."""
    device: Annotated[
        str,
        StringConstraints(pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$"),
        Field(examples=["auto", "cpu", "cuda", "cuda:0"]),
    ] = "auto"
    """auto takes the first GPU if there is one, else the CPU."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the computation: bfloat16 means autocast over float32 weights."""
    architecture: ArchitectureConfig = Field(default_factory=ArchitectureConfig)
    """The shape of the network."""


class TrainingConfig(Section):
    """How long and how hard to train."""

    batch_size: Positive = 4
    """Sequences a forward pass."""
    gradient_accumulation_steps: Positive = 1
    """Forward passes an optimizer step; batch_size × this is the global batch."""
    learning_rate: Annotated[float, Field(gt=0)] = 5e-5
    """Peak, after the warm-up."""
    min_learning_rate_ratio: Fraction = 0.1
    """The cosine ends at this share of the peak."""
    lr_scheduler: Literal["cosine", "constant"] = "cosine"
    """What the learning rate does after the warm-up."""
    warmup_steps: NotNegative = 100
    """Steps of linear rise to the peak; a shorter run warms up for all of its steps."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """On matrices only, not on norms."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the mean of the gradients."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of the mean of their squares."""
    adam_epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """Added to the root of the mean square, against division by zero."""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Gradients are clipped to this norm; null does not clip."""
    epochs: Positive | None = None
    """Passes over the training data at most; null leaves the length to max_steps."""
    max_steps: Positive | None = None
    """Optimizer steps at most; the earlier of epochs and max_steps ends the run."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 42
    """Start of every random generator; 32 bits, which all of them take."""
    validation_steps: Positive | None = None
    """Validate every so many steps; null validates at the end only."""
    validation_batches: Positive = 20
    """Global batches a validation."""


class ComputeConfig(Section):
    """How the work is put on the hardware."""

    strategy: Literal["single", "ddp", "fsdp", "hsdp"] = "single"
    """single: one device; ddp: a copy on each; fsdp: shards over all; hsdp: shards within each replica."""
    replicas: Annotated[int, Field(gt=0, le=65536)] = 1
    """With hsdp: how many whole copies of the model, each sharded over its part of the devices."""
    tensor_parallel: Annotated[int, Field(gt=0, le=1024)] = 1
    """With fsdp and hsdp: processes that cut each matrix among them and train on the same sequences."""
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"
    """With fsdp and hsdp in bfloat16: type in which gradients are summed over the processes."""
    gradient_compression: Literal["none", "powersgd"] = "none"
    """With ddp: powersgd exchanges gradients of low rank (kernel_optimization.compression_ratio)."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """Compute activations again in the backward pass: all but the dear ones, or all; saves memory."""
    cpu_offload: bool = False
    """With fsdp and hsdp: keep parameters, gradients and moments in the memory of the CPU."""
    compile: bool = False
    """torch.compile: faster steps, a slower start."""
    deterministic: bool = True
    """Only deterministic kernels, so that a resumed run is bitwise the same."""
    threads: Annotated[int, Field(gt=0, le=4096)] | None = None
    """CPU threads; null takes one a core. Part of the numbers: another count may round differently."""


class HuggingFaceConfig(Section):
    """A dataset that the Hugging Face `datasets` library reads, streamed while training."""

    dataset: Name | None = None
    """Its name on the Hub, such as allenai/c4, or a local folder; null trains on data.train_path."""
    name: Name | None = None
    """Which of its configurations, such as en; null takes the only one."""
    split: Name = "train"
    """The split to train on."""
    validation_split: Name | None = "validation"
    """The split to validate on; null does not validate."""
    revision: Name | None = None
    """Commit, branch or tag; null takes the newest commit. The commit goes on record in the run."""
    shuffled_sequences: Positive = 256
    """Sequences read ahead and shuffled; a resume reads as many again."""


class DataConfig(Section):
    """What to train on."""

    hugging_face: HuggingFaceConfig = Field(default_factory=HuggingFaceConfig)
    """A stream instead of files."""
    train_path: Name | None = None
    """A file or folder of .txt, .py, .md, .jsonl, .parquet, .bin; null takes Python's standard library."""
    validation_path: Name | None = None
    """null holds out part of what is trained on, as validation_split says."""
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share held out when validation_path is null."""
    validation_split: Literal["auto", "files", "within"] = "auto"
    """files: whole files; within: the end of each file, or some of its rows; auto: files if they suffice."""
    text_field: Name = "text"
    """The field of .jsonl rows and the column of .parquet files that holds the text."""
    bin_dtype: Literal["uint16", "uint32"] = "uint16"
    """Type of the tokens in .bin files; a Megatron .idx beside one tells it itself."""
    sequence_length: Annotated[int, Field(ge=2, le=MOST)] = 2048
    """Tokens a sample."""
    packing: Literal["concatenate", "separate"] = "concatenate"
    """concatenate: documents of a sample see those before; separate: each attends to itself alone."""
    prepared_directory: Name = "data/prepared"
    """Where token files are kept between runs."""


class CheckpointingConfig(Section):
    """When to save, and how many to keep."""

    save_steps: Positive = 500
    """Save a checkpoint every so many steps, and at the end."""
    mode: Literal["sync", "async", "async_process"] = "sync"
    """sync: training waits; async: a thread writes a copy behind training; async_process: a process does."""
    keep_last: Positive = 5
    """Older checkpoints are removed from the run directory after a newer one is whole."""
    keep_every: Positive | None = None
    """Checkpoints of every so many steps stay for good, beside the last ones; null keeps no others."""


class WandbConfig(Section):
    """Weights & Biases; without a key it logs offline into the run directory."""

    enabled: bool = False
    """Log the metrics to Weights & Biases too."""
    project: Name = "trainyard"
    """The project that the runs are filed under."""
    entity: Name | None = None
    """The team or user; null takes the one of the key."""


class MonitoringConfig(Section):
    """What is logged, how often and where."""

    log_steps: Positive = 10
    """Write a row of metrics every so many steps."""
    tensorboard: bool = True
    """Write event files for TensorBoard beside metrics.jsonl."""
    hang_factor: Annotated[float, Field(ge=2)] | None = 10.0
    """A step that takes so many times the median is a hang, which ends the run; null waits for ever."""
    hang_seconds: Annotated[float, Field(gt=0, le=86400)] = 180.0
    """No less than this is a hang; the first step, compiling and saving have ten times as long."""
    wandb: WandbConfig = Field(default_factory=WandbConfig)
    """Weights & Biases."""


class KernelOptimizationConfig(Section):
    """Depth, ratio and widths that recipes, exchanges and kernels are made with."""

    rlvr_depth: Annotated[int, Field(gt=0, le=64)] = 3
    """With recipe: grpo: how deep the parentheses of the arithmetic are nested."""
    compression_ratio: Annotated[float, Field(ge=1)] = 30.0
    """With compute.gradient_compression: the rank is the largest that sends one number in so many at most."""
    tile_bytes: Positive = 256
    """Bytes of quantised weights that a native kernel turns into floats at a time."""
    simd_bits: Literal[128, 256, 512] | None = None
    """With compute.compile on a CPU: width of the vectors of compiled kernels; null takes its widest."""


class ArtifactsConfig(Section):
    """Where the checkpoints go after training."""

    store: (
        Annotated[
            str,
            StringConstraints(
                pattern=r"^(s3://[A-Za-z0-9][A-Za-z0-9._-]{1,254}(/.*)?|file:///.*)$", max_length=LONGEST_TEXT
            ),
            Field(examples=["s3://bucket/prefix", "file:///folder"]),
        ]
        | None
    ) = None
    """s3://bucket/prefix or file:///folder; null keeps everything on this machine."""
    encryption: Literal["AES256", "aws:kms", "none"] = "AES256"
    """Server-side encryption asked of S3."""


class SlackConfig(Section):
    """What Slack is told. The webhook or token comes from the environment, never from here."""

    enabled: bool = True
    """Send messages; without a webhook or token they are printed instead."""
    channel: Name | None = None
    """Needed with a bot token; a webhook has its channel."""


class NotificationsConfig(Section):
    """Who hears of a run."""

    slack: SlackConfig = Field(default_factory=SlackConfig)
    """Messages to Slack."""


class Config(Section):
    """A whole training configuration."""

    recipe: Literal["pretrain", "grpo"] = "pretrain"
    """pretrain: next tokens of data.train_path; grpo: generated arithmetic, rewarded for right answers."""
    model: ModelConfig
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    compute: ComputeConfig = Field(default_factory=ComputeConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    checkpointing: CheckpointingConfig = Field(default_factory=CheckpointingConfig)
    monitoring: MonitoringConfig = Field(default_factory=MonitoringConfig)
    grpo: GrpoConfig = Field(default_factory=GrpoConfig)
    kernel_optimization: KernelOptimizationConfig = Field(default_factory=KernelOptimizationConfig)
    artifacts: ArtifactsConfig = Field(default_factory=ArtifactsConfig)
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    notifications: NotificationsConfig = Field(default_factory=NotificationsConfig)

    def to_plain(self) -> dict[str, Any]:
        """Every value as plain data, ready for YAML or JSON."""
        return self.model_dump(mode="json")
