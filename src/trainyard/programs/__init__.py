"""Any other training program: start it, read its metrics, find its complete checkpoints, stop it, resume it.

In: the program's command, its output and the files that it writes. Out: the records and checkpoints of a run
directory. `checkpoints/` has the one table of checkpoint formats.
"""
