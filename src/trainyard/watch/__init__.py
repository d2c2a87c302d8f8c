"""What goes on after a job ends or dies: runners, dead jobs, and the next segment of a long run.

In: what GitHub says of runners and jobs, and a run's handover. Out: findings, and segments to dispatch.
Pure: the calls to GitHub are handed in.
"""
