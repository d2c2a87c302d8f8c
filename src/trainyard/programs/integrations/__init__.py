"""Callbacks for other trainers, which report to a run by the calls of `trainyard`: one file for each.

In: the trainer's hooks, inside somebody's program. Out: lines of the file that TRAINYARD_EVENTS names, which
`program_events` reads. Each file imports its trainer and the module `trainyard`, so both may be copied.
"""
