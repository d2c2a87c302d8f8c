"""Trainyard: push a commit, get a trained model you can prove.

The library behind `scripts/`. `docs/architecture.md` draws the way of the data through its folders.
"""

__version__ = "0.1.0"
