"""The processes and devices of a run: torchrun, rendezvous, liveness, stop signals, timing, hardware.

In: the environment of the launcher and the configuration. Out: a `World`, a device, a request to stop.
It knows no model, data or checkpoint.
"""
