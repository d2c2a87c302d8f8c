"""What a program does before it imports torch, which takes seconds and reads its environment once."""

from collections.abc import Callable
from pathlib import Path

from trainyard.run.early_digests import digests_begun
from trainyard.training.torch_variables import set_torch_variables


def before_torch(run_dir: Path | None, resume: str) -> Callable[[Path], str]:
    """Set torch's variables, and begin to hash what `resume` goes on from; gives the SHA-256 of a file."""
    set_torch_variables()
    return digests_begun(run_dir, resume)
