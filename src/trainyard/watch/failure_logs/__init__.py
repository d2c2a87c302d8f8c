"""Explain from its logs why a training ended: classes, the table of evidence, the choice of the cause.

In: lines of logs and events, an exit code. Out: a class, the lines that show it, and whether a
retry recovers from it.
"""
