"""Search over keys of a configuration: many trainings, and which of them ended best.

In: the values that each key may take, and how each training ended. Out: the settings of the next training,
and all trainings in order. It starts no process.
"""
