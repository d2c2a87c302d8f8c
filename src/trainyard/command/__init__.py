"""The parts that every script shares: argument parser, output, signals, and the handler of errors and exit
codes.

In: a script's docstring, options and `main`. Out: parsed arguments, log lines, an exit code. It knows no
pipeline step and starts nothing.
"""
