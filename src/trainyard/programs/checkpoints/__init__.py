"""Find checkpoints of any trainer in a list of files, and judge which of them are complete.

In: the list of the files of a folder, on this machine or on a cluster's volume. Out: the checkpoints among
them, each with its step and a verdict. One table (`checkpoint_formats`) says what makes each format complete.
"""
