"""The recipe `grpo`: a model learns arithmetic from rewards that are verified by evaluation.

In: a configuration with `recipe: grpo`. Out: the same run directory as pretraining writes.
Sampling and rewards go through TRL; state, saves, records and outcome are those of `training/run`.
"""
