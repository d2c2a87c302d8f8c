"""The API of a Kubernetes cluster: who we are to it, and its answers as plain JSON.

Enters: a parsed kubeconfig, or the address of an EKS cluster. Leaves: answers, or one of the errors of
`errors`. What to ask, and what an answer means, is decided elsewhere.
"""
