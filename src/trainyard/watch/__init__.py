"""Judge how a job ended: classes of failures, the cause that its log names, and whether it is sent again.

In: the state of a job, the last lines of its log, the record of earlier attempts. Out: a class with evidence,
a decision. Pure.
"""
