"""The Slack messages of a run, and the thread that holds them.

In: an event, `RunFacts`, and the events that the thread has already. Out: Block Kit and plain text.
Nothing is sent here; `gateways.slack` sends.
"""
