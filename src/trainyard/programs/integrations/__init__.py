"""Callbacks for other trainers, which report to a run: one file for each, usable alone.

In: the trainer's hooks, inside somebody's program. Out: lines of the file that TRAINYARD_EVENTS names, which
`program_events` reads. Each file imports its trainer and nothing of Trainyard, so it may be copied.
"""
