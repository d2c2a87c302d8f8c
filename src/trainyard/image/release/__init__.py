"""A built image on its way to people: the checks of three levels, tags, the scan's verdict, what is attached.

In: what a builder, a probe and a registry answered. Out: verdicts, reports and the steps to take.
"""
