"""Keep runs in a store and prove that the store has what the trainer wrote: record, upload, verify, restore.

In: a run directory and an open store. Out: objects, a manifest that is written last, verdicts.
Each room is named after its work on one run; the modules beside them read several runs at once.
"""
