"""What is in the store is what the trainer wrote: record it, send it, check it, bring it back.

In: a run directory and a store that is handed in. Out: objects, a manifest that is written last, verdicts.
The rooms are named by what they do to a run; the modules beside them look at several runs at once.
"""
