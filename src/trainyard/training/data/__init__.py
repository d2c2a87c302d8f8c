"""Turn files or streams of text into batches of tokens, in an order given by seed, epoch and step alone.

In: `data` of the configuration. Out: prepared token datasets, streams, vocabulary, batches.
"""
