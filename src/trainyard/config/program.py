"""The section `program` of the configuration: what only other people's training programs need.

Recipes that the trainer of this repository runs itself ignore it.
"""

from typing import Annotated

from pydantic import Field, StringConstraints

from trainyard.config.section import LONGEST_TEXT, Name, Positive, Section


class ProgramConfig(Section):
    """What the program of another recipe than pretrain and grpo needs; those two ignore this section."""

    script: Name | None = None
    """The program's file in the image, such as /opt/Megatron-LM/pretrain_gpt.py."""
    preset: (
        Annotated[
            str,
            StringConstraints(pattern=r"^[A-Za-z0-9_]+\.[A-Za-z0-9_]+$", max_length=LONGEST_TEXT),
            Field(examples=["llama3.llama3_8b"]),
        ]
        | None
    ) = None
    """With recipe: torchtitan: its module and the configuration in it, such as llama3.llama3_8b."""
    global_batch: Positive | None = None
    """Sequences per optimizer step; null: batch_size × gradient_accumulation_steps × data-parallel size."""
    settings: Name | None = None
    """The program's own settings by its own names, a KEY=VALUE per line."""
