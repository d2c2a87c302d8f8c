"""The five parts of the proof: trained, learned, network, stored, repeatable.

In: a run's records, and the findings in the store. Out: a `Proof`, with evidence and next step for each
part. Pure: nothing is read from disk, and no clock is read.
"""

# The parts in their order.
PARTS = ("trained", "learned", "network", "stored", "repeatable")
