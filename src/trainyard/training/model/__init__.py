"""The model and what trains it: layers, loss, optimizer, and how it is put on several devices.

In: `model`, `training` and `compute` of the configuration. Out: a module that is sharded, compiled and ready.
It reads no file.
"""
