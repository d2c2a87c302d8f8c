"""Every figure and verdict that reports show about a run, computed once.

In: a run directory. Out: `RunFacts`, the headline, troubles, changed settings, and numbers with their units.
It renders nothing.
"""
