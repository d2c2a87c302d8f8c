"""Text about jobs on a cluster, for a terminal and for logs.

In: the record of a `JobState`, and plain data of events. Out: text. Nothing is judged here.
"""
