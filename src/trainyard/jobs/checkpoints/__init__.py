"""Checkpoints on a volume of a cluster, of any trainer: which ones there are, and which of them are whole.

In: the list of the files on a volume. Out: the checkpoints among them, each with its step and a verdict.
"""
