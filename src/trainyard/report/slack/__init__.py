"""The Slack messages of a run, and the thread that they stand in.

In: an event, `RunFacts`, and what was already said in the thread. Out: Block Kit and plain text.
Nothing is sent here; `gateways.slack` sends.
"""
