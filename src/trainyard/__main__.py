"""`python -m trainyard` is the command `trainyard`."""

import sys

# `init github` is called before `make install`, with whatever python3 a laptop has.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.stderr.write("trainyard needs Python 3.11 or newer, and this is %d.%d.\n" % sys.version_info[:2])  # noqa: UP031
    sys.stderr.write("make install fetches one; then: .venv/bin/trainyard COMMAND\n")
    sys.exit(2)

from trainyard.commands import main

if __name__ == "__main__":
    sys.exit(main())
