"""A run's state on disk: captured, staged, written, completed, verified, resumed from and removed.

In: the live state, or a checkpoint directory. Out: `checkpoints/step-NNNNNNNN/`
with its manifest last, or the state.
"""
