"""A script with LightningCLI.

Lightning starts the processes of several GPUs itself, or takes those of torchrun. A run that is not resumed
from a checkpoint begins in a new folder version_N of its logs.
"""

from trainyard.config.schema import Config
from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat
from trainyard.programs.presets.preset import Preset, PresetCommand, PresetRun


def command(config: Config, run: PresetRun) -> PresetCommand:
    training = config.training
    options = {
        "seed_everything": training.seed,
        "trainer.default_root_dir": run.checkpoints,
        "trainer.max_steps": training.max_steps or -1,
        "trainer.max_epochs": None if training.max_steps else training.epochs,
        "trainer.num_nodes": run.nodes,
        "trainer.accelerator": "cpu" if config.model.device == "cpu" else "auto",
        "trainer.devices": run.degrees.per_node,
        "trainer.precision": "bf16-mixed" if config.model.dtype == "bfloat16" else "32-true",
        "trainer.accumulate_grad_batches": run.degrees.micro_batches,
        "trainer.gradient_clip_val": training.max_grad_norm,
        "trainer.log_every_n_steps": config.monitoring.log_steps,
        "trainer.callbacks+": "ModelCheckpoint",
        "trainer.callbacks.every_n_train_steps": config.checkpointing.save_steps,
        "trainer.callbacks.monitor": "step",
        "trainer.callbacks.mode": "max",
        "trainer.callbacks.save_top_k": max(2, config.checkpointing.keep_last),
    }
    return PresetCommand(("python", str(config.program.script), "fit"), options, metrics=run.checkpoints)


PRESET = Preset(
    "lightning",
    command,
    checkpoints="**/*.ckpt",
    formats=(CheckpointFormat.LIGHTNING,),
    resume=("--ckpt_path", "{checkpoint}"),
    switches=False,
    required={"program.script": "your script, which calls LightningCLI"},
    planned={
        "trainer.default_root_dir": "--run-dir",
        "trainer.max_steps": "training.max_steps",
        "trainer.num_nodes": "--num-nodes",
        "trainer.log_every_n_steps": "monitoring.log_steps",
    },
)
