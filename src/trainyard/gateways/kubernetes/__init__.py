"""The API of a Kubernetes cluster: our identity there, and its answers as plain JSON.

In: a parsed kubeconfig, or the address of an EKS cluster. Out: answers, or one of the errors of `errors`. The
callers decide what to request and what an answer means.
"""
