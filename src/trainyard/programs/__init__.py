"""Any other training program: how it is started and stopped, and what it prints and writes.

In: a command, its output and its files. Out: rows of metrics, complete checkpoints, exit codes.
"""
