"""One segment of a run, the same for every recipe: from its first record to its outcome.

In: a request and a recipe (`recipe_contract`). Out: rows, events, checkpoints, an outcome in `run.json`.
`lifecycle` is the complete sequence; `step_loop` records, saves and stops around each step.
"""
