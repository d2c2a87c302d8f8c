"""What one segment of a pretraining run does, from its first record to its outcome.

In: a request, and the parts from the other rooms. Out: rows, events, checkpoints, an outcome in `run.json`.
`lifecycle` is the whole of it; `loop` and `step` are the training inside.
"""
