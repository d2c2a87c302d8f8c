"""The metrics of any training program: rows from its output, from its files, and both merged.

In: text that the program printed, and files below its directory. Out: rows with the names of
`metrics.jsonl`, one a step. Nothing is written here, and no process is started.
"""
