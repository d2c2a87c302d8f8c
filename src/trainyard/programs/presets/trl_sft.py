"""TRL's supervised fine-tuning: the script that `trl sft` runs too.

data.train_path is a dataset of the Hub, or a folder of JSON lines, CSV or parquet files that the package
datasets reads.
"""

from trainyard.config.schema import Config
from trainyard.programs.presets import hf_trainer
from trainyard.programs.presets.preset import Preset, PresetCommand, PresetRun


def command(config: Config, run: PresetRun) -> PresetCommand:
    arguments = hf_trainer.training_arguments(config, run)
    names = ("output_dir", "model_name_or_path")
    options = {
        **{name: arguments[name] for name in names},
        "dataset_name": config.data.train_path,
        "max_length": config.data.sequence_length,
        **arguments,
        # TRL sets it unless an option says otherwise.
        "gradient_checkpointing": str(config.compute.activation_checkpointing != "none"),
    }
    return PresetCommand(("python", "-m", "trl.scripts.sft"), options)


PRESET = Preset(
    "trl-sft",
    command,
    checkpoints=hf_trainer.PRESET.checkpoints,
    resume=hf_trainer.PRESET.resume,
    uses=("training.epochs",),
    required={
        "model.path": "the folder or Hub id of the model to train, such as Qwen/Qwen2.5-0.5B-Instruct",
        "data.train_path": "a dataset of the Hub, or a folder of data files",
    },
)
