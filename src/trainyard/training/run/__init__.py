"""The parts around the steps of a segment: records, saves, stops, hangs and the outcome.

In: a request. Out: rows, events, checkpoints, an outcome in `run.json`. `training.loop` uses them in order.
"""
