"""Start the observer, and import the `sitecustomize` of the environment, which this one hides.

Python imports it at its start, from a folder that it takes off `sys.path`. A Python before 3.8, as some tools
use, does so too, and would print an error for the syntax of the observer itself.
"""

import os
import sys

if __name__ == "sitecustomize":
    if os.environ.get("TRAINYARD_EVENTS") and sys.version_info >= (3, 8):
        try:
            import trainyard_observer  # type: ignore[import-not-found]

            trainyard_observer.observe()
        except Exception:
            pass
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != folder]
    this = sys.modules.pop("sitecustomize")
    try:
        # What it raises is raised, as without this one.
        __import__("sitecustomize")
    except ImportError as error:
        sys.modules["sitecustomize"] = this
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
