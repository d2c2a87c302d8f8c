"""What a script shows on a terminal or in a log while it works, and at its end.

In: progress, rows, and the facts of a finished run. Out: live lines, plain log lines, closing lines.
How a line is drawn is `command.terminal`'s; this room writes its text.
"""
