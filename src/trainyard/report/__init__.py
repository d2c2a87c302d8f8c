"""Show a run, a plan or a change to people: on a terminal, in files, on GitHub and in Slack.

In: a run directory, a plan, two sets of figures. Out: text, JSON, Markdown, HTML and Slack blocks.
`facts/` computes every figure once; the other rooms only show them. Nothing is sent.
"""
