"""The trainer, and the only importer of torch. It knows no store and no network beyond torch's own.

In: a `Config`, prepared data, a checkpoint to resume from. Out: the run directory. `loop` reads as the
algorithm. Rooms below use rooms above: runtime, model, checkpoint, weights, data, export, run, loop.
"""
