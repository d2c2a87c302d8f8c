"""What a program does before it imports torch, which takes seconds and reads its environment once.

before_torch ---> imports, building, loading: no garbage is looked for ---> started
"""

import gc
from collections.abc import Callable
from pathlib import Path

from trainyard.run.early_digests import digests_begun
from trainyard.training.torch_variables import set_torch_variables


def before_torch(run_dir: Path | None, resume: str) -> Callable[[Path], str]:
    """Set torch's variables, and begin to hash what `resume` goes on from; gives the SHA-256 of a file.

    Until `started`, no garbage is looked for: what imports make stays, and looking through all of it again
    and again takes a seventh of their time.
    """
    set_torch_variables()
    gc.disable()
    return digests_begun(run_dir, resume)


def started() -> None:
    """Look for garbage again, if `before_torch` stopped that, and never in what there is by now."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
