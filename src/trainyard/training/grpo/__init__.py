"""The recipe `grpo`: a model learns arithmetic from rewards that are computed by evaluating its answers."""
