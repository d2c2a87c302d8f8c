"""Keep runs in a store and prove that the store has what the trainer wrote: record, upload, verify, restore.

In: a run directory and a store that is handed in. Out: objects, a manifest that is written last, verdicts.
The rooms are named by what they do to a run; the modules beside them read several runs at once.
"""
