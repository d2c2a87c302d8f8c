"""What a configuration will take, before anything starts: memory, time, cost, and where it runs.

In: a `Config` and the data of a device or instance type. Out: plans as plain values.
Pure, and without torch; the texts are written in `report/plan/`.
"""
