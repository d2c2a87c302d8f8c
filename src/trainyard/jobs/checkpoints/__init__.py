"""Find checkpoints of any trainer on a cluster's volume, and judge which of them are complete.

In: the list of the files on a volume. Out: the checkpoints among them, each with its step and a verdict.
"""
