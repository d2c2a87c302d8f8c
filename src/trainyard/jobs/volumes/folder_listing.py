"""List a folder of this machine as the program in a pod lists a volume, for the same table of formats."""

import io
import sys
from pathlib import Path

from trainyard.jobs.volumes.volume_agent import list_below
from trainyard.run.checkpoints.volume_listing import ListingReader, VolumeListing


def list_checkpoint_folder(folder: Path) -> VolumeListing:
    """Return the files below the folder; links are left out, and a folder that does not exist has none."""
    lines, reader = io.BytesIO(), ListingReader()
    list_below(folder, lines, most=sys.maxsize)
    for line in lines.getvalue().splitlines():
        reader.take(line)
    return reader.listing()
