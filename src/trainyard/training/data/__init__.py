"""From files or streams of text to batches of tokens, in an order that depends on seed, epoch and step alone.

In: `data` of the configuration. Out: prepared token datasets, streams, vocabulary, batches.
"""
