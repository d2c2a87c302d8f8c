"""Why a training ended, read from its logs: classes, the table of evidence, and the choice of the cause.

In: lines of logs and events, an exit code. Out: a class, the lines that show it, and whether a
retry recovers from it.
"""
