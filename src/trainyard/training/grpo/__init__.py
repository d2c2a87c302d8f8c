"""The recipe `grpo`: a model learns arithmetic from rewards that are verified by evaluation."""
