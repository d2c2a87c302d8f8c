"""Find the repository whose code runs: the checkout of the script that was started, or of the package.

An installed package has no checkout. The files that a build machine needs, the probe and the template of AWS
are then among the data of the environment, in the same places below `share/trainyard`.

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


def find_shipped_files() -> Path:
    """Return the folder with buildspec.yml, docker/ and infrastructure/: of the checkout, or installed."""
    installed = (Path(sys.prefix), Path(__file__).resolve().parents[2])  # the latter: `pip install --target`
    places = (REPOSITORY_ROOT, *(folder / "share" / "trainyard" for folder in installed))
    return next((one for one in places if (one / "buildspec.yml").is_file()), REPOSITORY_ROOT)


SHIPPED_FILES = find_shipped_files()
