"""A plan as people read it before anything starts.

In: a training plan or the plan of a workflow run, as data. Out: plain text and Markdown.
The figures themselves are computed in `plan/`.
"""
