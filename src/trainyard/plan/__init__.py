"""Plan a run before anything starts: its memory, time, cost and place.

In: a `Config` and the data of a device or instance type. Out: plans as plain values.
Pure, and without torch; the texts are written in `report/plan/`.
"""
