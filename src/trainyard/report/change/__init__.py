"""Compare a short training run before and after a change: the figures of the base with those of the head.

In: the run directories of both. Out: a verdict, and Markdown for the pull request and the job summary.
"""
