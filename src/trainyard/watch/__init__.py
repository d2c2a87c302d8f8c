"""Act when a job ends or dies: watch runners, find dead jobs, choose the next segment of a long run.

In: GitHub's lists of runners and jobs, and a run's handover. Out: findings, and segments to dispatch.
Pure: the calls to GitHub are handed in.
"""
