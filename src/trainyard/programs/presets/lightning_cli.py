"""A script with LightningCLI.

Lightning starts the processes of several GPUs itself, or takes those of torchrun. A run that is not resumed
from a checkpoint begins in a new folder version_N of its logs.
"""

from trainyard.config.schema import Config
from trainyard.programs.presets.preset import Planned, Preset, PresetCommand, PresetRun


def command(config: Config, run: PresetRun) -> PresetCommand:
    training = config.training
    options = {
        "seed_everything": training.seed,
        "trainer.default_root_dir": Planned(run.checkpoints, "--run-dir"),
        "trainer.max_steps": Planned(training.max_steps or -1, "training.max_steps"),
        "trainer.max_epochs": None if training.max_steps else training.epochs,
        "trainer.num_nodes": Planned(run.nodes, "--num-nodes"),
        "trainer.accelerator": "cpu" if config.model.device == "cpu" else "auto",
        "trainer.devices": run.degrees.per_node,
        "trainer.precision": "bf16-mixed" if config.model.dtype == "bfloat16" else "32-true",
        "trainer.accumulate_grad_batches": run.degrees.micro_batches,
        "trainer.gradient_clip_val": training.max_grad_norm,
        "trainer.log_every_n_steps": Planned(config.monitoring.log_steps, "monitoring.log_steps"),
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
    resume=("--ckpt_path", "{checkpoint}"),
    switches=False,
    uses=("training.epochs",),
    required={"program.script": "your script, which calls LightningCLI"},
)
