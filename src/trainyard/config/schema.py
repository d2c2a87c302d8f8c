"""The shape of the configuration: sections, keys, types, ranges, defaults.

It reads no file (`load` does) and compares no values with each other (`combinations` does). Each part of the
program receives its own section, frozen, never the complete configuration.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from trainyard.config.cluster import ClusterConfig
from trainyard.config.registries import (
    DEFAULT_RECIPE,
    EVERY_RECIPE,
    RECIPES,
    STORE_SCHEMES,
    store_pattern,
)
from trainyard.config.section import (
    LONGEST_TEXT,
    MOST,
    Fraction,
    Name,
    NotNegative,
    OneOf,
    Positive,
    Section,
    Words,
)


class RopeScalingConfig(Section):
    """Scaling of the rotary position embedding, for contexts longer than the model was first trained on."""

    rope_type: Literal["default", "llama3"] = "default"
    """default: no scaling; llama3: divide low frequencies by factor."""
    factor: Annotated[float, Field(ge=1)] = 8.0
    """Divisor of the lowest frequencies."""
    low_freq_factor: Annotated[float, Field(gt=0)] = 1.0
    """Frequencies with fewer turns within the original length are low."""
    high_freq_factor: Annotated[float, Field(gt=0)] = 4.0
    """Frequencies with more turns within the original length are high."""
    original_max_position_embeddings: Positive = 8192
    """Context length of the first training."""


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
    """Query heads, of hidden_size / num_attention_heads dimensions."""
    num_key_value_heads: Positive = 2
    """Key and value heads; fewer: grouped-query attention."""
    max_position_embeddings: Positive = 2048
    """Longest sequence, in tokens."""
    rope_theta: Annotated[float, Field(gt=0)] = 10000.0
    """Base of the rotary position embedding."""
    rms_norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    """Epsilon of RMSNorm."""
    tie_word_embeddings: bool = False
    """Output layer and input embedding share weights."""
    initializer_range: Annotated[float, Field(gt=0)] = 0.02
    """Standard deviation of random weights."""
    rope_scaling: RopeScalingConfig = Field(default_factory=RopeScalingConfig)
    """Scaling of the rotary position embedding, as in Llama 3.1 and 3.2."""


class ModelConfig(Section):
    """The model, its weights and its device."""

    name: Name
    """Name in reports only."""
    path: Name | None = None
    """Starting weights: folder, .safetensors, .gguf, checkpoint or Hub id; null: random."""
    tokenizer: Name | None = None
    """A Hugging Face tokenizer.json; null: bytes."""
    device: Annotated[
        str,
        StringConstraints(pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$"),
        Field(examples=["auto", "cpu", "cuda", "cuda:0"]),
    ] = "auto"
    """auto: the first GPU, else the CPU."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: autocast with float32 weights."""
    architecture: ArchitectureConfig = Field(default_factory=ArchitectureConfig)
    """The shape of the network."""


class TrainingConfig(Section):
    """Length and intensity of training."""

    batch_size: Positive = 4
    """Sequences per forward pass and process."""
    gradient_accumulation_steps: Positive = 1
    """Forward passes per step."""
    optimizer: Literal["adamw"] = "adamw"
    """AdamW with weight decay of matrices only."""
    learning_rate: Annotated[float, Field(gt=0)] = 5e-5
    """Peak learning rate, reached after the warm-up."""
    min_learning_rate_ratio: Fraction = 0.1
    """Share of the peak rate at the end."""
    lr_scheduler: Literal["cosine", "linear", "warmup_stable_decay", "constant"] = "cosine"
    """Schedule after the warm-up; warmup_stable_decay falls only at the end."""
    decay_steps: Positive | None = None
    """Steps in which warmup_stable_decay falls; null: the last fifth."""
    warmup_steps: NotNegative = 100
    """Steps of linear warm-up to the peak."""
    schedule_on_extension: Literal["stretch", "keep"] = "stretch"
    """Resumed with another number of steps: stretch the schedule, or keep it."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Weight decay of matrices; norms have none."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of AdamW's mean of the gradients."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of AdamW's mean of the squared gradients."""
    adam_epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """AdamW's epsilon."""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Gradients are clipped to this norm; null: no clipping."""
    epochs: Positive | None = None
    """Maximum passes over the training data."""
    max_steps: Positive | None = None
    """Maximum optimizer steps."""
    skip_bad_steps: NotNegative = 0
    """Most updates in a row that are skipped for a spiking or not finite loss or gradient."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 42
    """Seed of every random generator."""
    validation_steps: Positive | None = None
    """Steps between validations; null: only at the end."""
    validation_batches: Positive = 20
    """Global batches per validation."""


class ComputeConfig(Section):
    """Use of the hardware."""

    strategy: Literal["single", "ddp", "fsdp", "hsdp"] = "single"
    """single: one device; ddp: a copy per device; fsdp: shards over all; hsdp: shards within each replica."""
    replicas: Annotated[int, Field(gt=0, le=65536)] = 1
    """With hsdp: replicas of the model, each sharded over its devices."""
    tensor_parallel: Annotated[int, Field(gt=0, le=1024)] = 1
    """With fsdp and hsdp: processes that share each matrix."""
    pipeline_parallel: Annotated[int, Field(gt=0, le=1024)] = 1
    """Other programs: stages of layers."""
    context_parallel: Annotated[int, Field(gt=0, le=1024)] = 1
    """Other programs: processes that share each sequence."""
    expert_parallel: Annotated[int, Field(gt=0, le=1024)] = 1
    """With recipe: megatron: processes that share a layer's experts."""
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"
    """With fsdp and hsdp in bfloat16: type of reduced gradients."""
    gradient_compression: Literal["none", "powersgd"] = "none"
    """With ddp: powersgd exchanges low-rank gradients."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """Recompute activations in the backward pass; selective keeps the expensive ones."""
    cpu_offload: bool = False
    """With fsdp and hsdp: keep parameters, gradients and optimizer state in CPU memory."""
    compile: bool = False
    """Use torch.compile: faster steps, a slower start."""
    deterministic: bool = True
    """Deterministic kernels: a resumed run is bitwise the same."""
    network: Literal["auto", "efa", "tcp"] = "auto"
    """Network between machines; auto: EFA where the instance type has it."""
    on_fallback: Literal["stop", "warn"] = "stop"
    """If NCCL uses TCP despite EFA or InfiniBand: stop, or warn."""
    network_test: bool = False
    """In pods: measure an all-reduce first, end if it is slow."""
    threads: Annotated[int, Field(gt=0, le=4096)] | None = None
    """CPU threads; null: one per core. Another count may round differently."""


class HuggingFaceConfig(Section):
    """A dataset that the Hugging Face `datasets` library streams during training."""

    dataset: Name | None = None
    """Name on the Hub, or a local folder; null: data.train_path."""
    name: Name | None = None
    """Its configuration, such as en; null: the only one."""
    split: Name = "train"
    """The split to train on."""
    validation_split: Name | None = "validation"
    """The split to validate on; null: none."""
    revision: Name | None = None
    """Commit, branch or tag; null: the newest commit."""
    shuffled_sequences: Positive = 256
    """Sequences in the shuffle buffer."""


class DataConfig(Section):
    """The data to train on."""

    hugging_face: HuggingFaceConfig = Field(default_factory=HuggingFaceConfig)
    """A streamed dataset instead of files."""
    train_path: Name | None = None
    """File or folder of .txt, .py, .md, .jsonl, .parquet, .bin; null: Python's standard library."""
    validation_path: Name | None = None
    """File or folder to validate on; null: held-out training data."""
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the training data held out."""
    text_field: Name = "text"
    """Field of .jsonl rows, column of .parquet files."""
    bin_dtype: Literal["uint16", "uint32"] = "uint16"
    """Type of .bin tokens."""
    sequence_length: Annotated[int, Field(ge=2, le=MOST)] = 2048
    """Tokens per sample."""
    packing: Literal["concatenate", "separate"] = "concatenate"
    """concatenate: a document attends to earlier ones of the sample, too."""
    prepared_directory: Name = "data/prepared"
    """Folder of prepared token files."""


class CheckpointingConfig(Section):
    """Saving and keeping of checkpoints."""

    save_steps: Positive = 500
    """Steps between checkpoints; another at the end."""
    mode: Literal["sync", "async"] = "sync"
    """sync: training waits; async: saves in the background."""
    keep_last: Positive = 5
    """Newest checkpoints to keep."""
    keep_every: Positive | None = None
    """Also keep checkpoints at multiples of this step."""
    shared: bool = True
    """Machines share the run's directory; false: each keeps its part."""


class WandbConfig(Section):
    """Weights & Biases; without a key it logs offline into the run directory."""

    enabled: bool = False
    """Also log the metrics to Weights & Biases."""
    project: Name = "trainyard"
    """Project of the runs."""
    entity: Name | None = None
    """Team or user; null: the API key's owner."""


class MonitoringConfig(Section):
    """Logging: its figures, intervals and destinations."""

    log_steps: Positive = 10
    """Steps between two rows of metrics."""
    tensorboard: bool = True
    """Write event files for TensorBoard beside metrics.jsonl."""
    prometheus_file: Annotated[Name, StringConstraints(pattern=r"\.prom$")] | None = None
    """Text file (*.prom) for Prometheus' node_exporter."""
    hang_factor: Annotated[float, Field(ge=2)] | None = 10.0
    """A step of this many medians is a hang and ends the run; null: never."""
    hang_seconds: Annotated[float, Field(gt=0, le=86400)] = 180.0
    """Shortest hang; the first step, compilation and saves get ten times as long."""
    wandb: WandbConfig = Field(default_factory=WandbConfig)
    """Weights & Biases."""


class GrpoConfig(Section):
    """Group relative policy optimization, with `recipe: verl` only."""

    completions_per_question: Annotated[int, Field(ge=2, le=65536)] = 16
    """Answers per question; must divide the answers of a step."""
    max_completion_tokens: Annotated[int, Field(ge=2, le=65536)] = 4
    """Longest answer in tokens."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature; above 1 answers vary more."""
    kl_coefficient: Annotated[float, Field(ge=0)] = 0.01
    """Weight of the KL divergence from the starting weights."""
    entropy_coefficient: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the entropy bonus."""


class KernelOptimizationConfig(Section):
    """Performance tuning, and the depth of the questions of examples/grpo."""

    rlvr_depth: Annotated[int, Field(gt=0, le=64)] = 3
    """Nesting depth of the questions of examples/grpo."""
    compression_ratio: Annotated[float, Field(ge=1)] = 30.0
    """With compute.gradient_compression: lowest ratio, which decides the rank."""
    tile_bytes: Positive = 256
    """Bytes that a native kernel dequantises at a time."""
    simd_bits: Literal[128, 256, 512] | None = None
    """With compute.compile on a CPU: vector width; null: the widest."""


class ArtifactsConfig(Section):
    """Store of the checkpoints after training."""

    store: (
        Annotated[
            str,
            StringConstraints(pattern=f"^({store_pattern()})$", max_length=LONGEST_TEXT),
            Field(examples=[scheme.example for scheme in STORE_SCHEMES.values()]),
        ]
        | None
    ) = None
    """null: the folder trainyard-store; a job on a cluster stores nothing."""
    encryption: Literal["AES256", "aws:kms", "none"] = "AES256"
    """Encryption requested from S3; for your own KMS key, the bucket's default: none."""
    store_failed: bool = True
    """Store while it trains and after a failure; false: only what is proven."""
    store_is_kept: bool = False
    """A file:// store is on a disk that outlives the job's machine, such as a pod's volume."""


class LimitsConfig(Section):
    """Limits at which a run stops with a checkpoint."""

    cost_usd: Annotated[float, Field(gt=0)] | None = None
    """US dollars for its machines, over all segments."""


class SlackConfig(Section):
    """Messages to Slack. The webhook or token comes from the environment, never from the configuration."""

    enabled: bool = True
    """Send messages, where a webhook or a token is set."""
    channel: Name | None = None
    """Slack channel; required with a bot token."""


class NotificationsConfig(Section):
    """Who is notified about a run."""

    slack: SlackConfig = Field(default_factory=SlackConfig)
    """Messages to Slack."""


class ProgramConfig(Section):
    """Another program than the trainer of this repository."""

    command: Words | None = None
    """Program and arguments; {training.seed} is its value, {run_dir} the run directory."""
    directory: Name = "."
    """Folder of the command; the paths below are relative to it."""
    environment: Annotated[dict[Name, str], Field(max_length=256)] = Field(default_factory=dict)
    """Variables of the command; secrets belong into the environment."""
    lock: Name | None = None
    """File that pins its packages; null: uv.lock, requirements.txt and the like."""
    data: Words | None = None
    """Files that it reads, such as data/*.jsonl; [] if it reads none."""
    steps: Positive | None = None
    """Optimizer steps that must be done; null: exit code 0 is enough."""
    metrics: Name = "auto"
    """auto: its output and files; or a file, or a folder of TensorBoard events."""
    checkpoints: Name = "auto"
    """Its checkpoints, such as out/checkpoint-*; auto: those that it saves."""
    resume: Words | None = None
    """Arguments added if there is a complete checkpoint; {checkpoint} is its path."""
    processes: Annotated[int, Field(gt=0, le=4096)] = 1
    """Processes on each machine; torchrun starts several."""
    hang_minutes: Annotated[float, Field(gt=0)] | None = 60.0
    """Minutes without a row or output that are a hang; null: never."""
    observe: bool = True
    """Observe steps, losses and saves inside the program's Pythons."""
    script: Name | None = None
    """File in the image, such as /opt/Megatron-LM/pretrain_gpt.py."""
    preset: (
        Annotated[
            str,
            StringConstraints(pattern=r"^[A-Za-z0-9_]+\.[A-Za-z0-9_]+$", max_length=LONGEST_TEXT),
            Field(examples=["llama3.llama3_8b"]),
        ]
        | None
    ) = None
    """torchtitan's module and configuration, such as llama3.llama3_8b."""
    global_batch: Positive | None = None
    """Sequences per step; null: batch_size × gradient_accumulation_steps × data-parallel size."""
    settings: Name | None = None
    """The program's own settings, a KEY=VALUE per line."""


class LearnedConfig(Section):
    """The requirements on learning for a proven run."""

    required: bool = False
    """A run of fewer than ten rows, too short to judge, fails."""
    figure: Annotated[Name, Field(examples=["accuracy", "eval/f1"])] = "auto"
    """The figure that must improve, or none; auto: reward, else val_loss, else loss."""
    higher_is_better: bool | None = None
    """Whether the figure should rise; null: known of rewards and losses only."""
    max_validation_loss: Annotated[float, Field(gt=0)] | None = None
    """Highest validation loss at the end that passes."""
    compare_with: (
        Annotated[
            str,
            StringConstraints(pattern=r"^(last-green|promoted:[a-z][a-z0-9-]{0,62}|run:[1-9]\d{0,14})$"),
            Field(examples=["last-green", "promoted:production", "run:812"]),
        ]
        | None
    ) = None
    """A stored run of the same data that must not be better."""
    tolerance: Fraction = 0.02
    """With compare_with: how much worse this run may be, as a share."""


class ProofConfig(Section):
    """The requirements of a proof."""

    learned: LearnedConfig = Field(default_factory=LearnedConfig)
    """What a run has to have learned."""


class EvaluationConfig(Section):
    """A command that evaluates the last checkpoint."""

    command: Words | None = None
    """Prints one JSON object of figures; {checkpoint} and {run_dir} are paths."""
    data: Words | None = None
    """Files that it reads, such as tasks/*.jsonl."""
    thresholds: Annotated[
        dict[Name, Annotated[str, StringConstraints(pattern=r"^(>=|<=|>|<) *-?\d+(\.\d+)?([eE][-+]?\d+)?$")]],
        Field(max_length=256),
    ] = Field(default_factory=dict)
    """Such as accuracy: ">= 0.60"; inner figures are outer.inner."""


class Config(Section):
    """A complete training configuration."""

    recipe: Annotated[str, OneOf(EVERY_RECIPE)] = DEFAULT_RECIPE
    model: ModelConfig
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    compute: ComputeConfig = Field(default_factory=ComputeConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    checkpointing: CheckpointingConfig = Field(default_factory=CheckpointingConfig)
    monitoring: MonitoringConfig = Field(default_factory=MonitoringConfig)
    grpo: GrpoConfig = Field(default_factory=GrpoConfig)
    program: ProgramConfig = Field(default_factory=ProgramConfig)
    kernel_optimization: KernelOptimizationConfig = Field(default_factory=KernelOptimizationConfig)
    artifacts: ArtifactsConfig = Field(default_factory=ArtifactsConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    proof: ProofConfig = Field(default_factory=ProofConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    notifications: NotificationsConfig = Field(default_factory=NotificationsConfig)

    @property
    def is_program(self) -> bool:
        """Whether another program trains than the trainer of this repository."""
        return self.recipe not in RECIPES

    def to_plain(self) -> dict[str, Any]:
        """Every value as plain data, ready for YAML or JSON."""
        return self.model_dump(mode="json")
