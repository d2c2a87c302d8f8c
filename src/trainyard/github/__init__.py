"""GitHub: what a workflow run does, its segments, the runners, the set-up of a repository, releases.

In: inputs and variables of a workflow, the state of GitHub and AWS, the changelog, and functions that send
requests. Out: the plan of a run, findings, set-up steps with a verdict, policies, release archives. Pure: it
opens no connection.
"""
