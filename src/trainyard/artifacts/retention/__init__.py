"""Rules for which checkpoints and records a store keeps, and the removal of the others.

In: retention rules and the manifests of a run. Out: a plan with a reason for each decision, then its
deletions.
"""
