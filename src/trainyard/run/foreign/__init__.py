"""Run directories for other training programs, made from their output and their checkpoints.

In: lines of a log, the program's own checkpoints, the exit code of each node. Out: the same records of a run
as those of the trainer.
"""
