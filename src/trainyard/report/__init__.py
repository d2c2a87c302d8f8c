"""What people read about a run, a plan or a change: on a terminal, in files, on GitHub and in Slack.

In: a run directory, a plan, two sets of figures. Out: text, JSON, Markdown, HTML and Slack blocks.
`facts/` computes every figure once; the other rooms only show them. Nothing is sent.
"""
