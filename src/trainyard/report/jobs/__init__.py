"""What is said of jobs on a cluster: text for a terminal and for logs.

Enters: the record of a `JobState`, and plain data of events. Leaves: text. Nothing is judged here.
"""
