"""Runs of other people's programs: a run directory is kept for them from what they print and save.

In: lines of a log, the program's own checkpoints, how each node ended. Out: the records of a run, as of the
trainer.
"""
