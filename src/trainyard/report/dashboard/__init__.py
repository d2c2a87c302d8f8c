"""The dashboard of a run as text, JSON, Markdown and HTML.

In: `RunFacts`. Out: one document per format.
Every format shows the same figures; the HTML file loads nothing from outside.
"""
