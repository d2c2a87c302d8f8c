"""The recipe `pretrain`: a model learns to predict the next token of texts.

In: token data, and what the lifecycle (`training/run`) hands over. Out: rows, weights, a sample of text.
Records, saves, stops and the outcome are the lifecycle's.
"""
