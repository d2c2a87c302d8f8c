"""The parts around the steps of a segment: records, saves, stops, hangs and the outcome.

In: a request. Out: rows, events, checkpoints, an outcome in `run.json`. `training.lifecycle` is the complete
sequence; `step_loop` records, saves and stops around each step.
"""
