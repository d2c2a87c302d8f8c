"""This repository itself: its set-up on GitHub, the trust policy of its AWS role, its releases and its
references.

In: the state of GitHub and AWS, docstrings, the changelog, and a way to ask that is handed in.
Out: steps with a verdict, policies, release archives, the script reference. It opens no connection.
"""
