"""The state of a run on disk: captured, staged, written, completed, verified, resumed and removed.

In: the live state, or a checkpoint directory. Out: `checkpoints/step-NNNNNNNN/` with its manifest, which is
written last, or the state.
"""
