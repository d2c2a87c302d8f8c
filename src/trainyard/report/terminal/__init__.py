"""The lines that a script shows on a terminal or in a log while it works, and at its end.

In: progress, rows, and the facts of a finished run. Out: live lines, plain log lines, closing lines.
`command.terminal` draws the lines; this room writes their text.
"""
