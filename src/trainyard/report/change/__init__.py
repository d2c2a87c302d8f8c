"""What a change does to a short training run: the figures of the base against those of the head.

In: the run directories of both. Out: a verdict, and Markdown for the pull request and the job summary.
"""
