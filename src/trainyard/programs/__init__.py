"""Any other program than the trainer of this repository: start it, read its metrics, find its checkpoints.

In: a command, its output and the files that it writes. Out: the run directory, as the trainer writes it. The
files decide what counts as saved; an event that a program reports is a hint.
"""
