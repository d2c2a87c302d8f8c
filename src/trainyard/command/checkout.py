"""Find the repository whose code runs: the checkout of the script that was started, or of the package.

It reads no git and compares nothing; `gateways.images.image_record` decides whether both are the same code.
"""

import sys
from pathlib import Path


def find_repository_root() -> Path:
    """Return the checkout of the started `scripts/NAME.py`, else the one of this package."""
    started = getattr(sys.modules.get("__main__"), "__file__", None)
    if started is not None:
        scripts = Path(started).resolve().parent
        marks = (scripts.parent / "src" / "trainyard", scripts.parent / ".git")
        if scripts.name == "scripts" and any(mark.exists() for mark in marks):
            return scripts.parent
    return Path(__file__).resolve().parents[3]


REPOSITORY_ROOT = find_repository_root()
