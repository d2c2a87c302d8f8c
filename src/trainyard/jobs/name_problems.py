"""Find names of a job that Kubernetes refuses, by the rules that the keys of the YAML have.

The API server accepts some of these names in a job and refuses only the pods that are made from it, so such a
job would wait without end. Preflight checks whether the objects of these names exist.
"""

import re
from collections.abc import Iterator

from trainyard.config.cluster import DNS_NAME, LONGEST_DNS_NAME
from trainyard.jobs.job_plan import JobPlan
from trainyard.jobs.pod_template import HYPERPOD, INSTANCE_TYPE

_MOST_SHOWN = 80
_PLAIN = re.compile(r"[!-~]+")
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
"""A DNS-1035 label, because operators name Services after it."""
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_NAME = re.compile(DNS_NAME)
_DNS_RULE = (
    "a name has lower-case letters, digits, dashes and dots, begins and ends with a letter or digit, and has "
    "at most {} characters"
)
_LONGEST_LABEL_VALUE = 63
_SECRET_KEY = re.compile(r"(?!\.\.)[-._A-Za-z0-9]{1,253}")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?")
"""The key of a taint, after its optional prefix `example.com/`."""
_LABEL_VALUE = re.compile(rf"({_QUALIFIED.pattern})?")
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::[0-9]+)?/)?{_PART}(?:/{_PART})*"
    r"(?::\w[\w.-]{0,127})?(?:@[A-Za-z][\w.+-]*:[0-9a-fA-F]{32,128})?",
    re.ASCII,
)
"""The grammar of references (github.com/distribution/reference)."""
_LONGEST_IMAGE = 512


def find_name_problems(plan: JobPlan, *, longest: int) -> Iterator[str]:
    """Yield the problems; the job's own name may have at most `longest` characters."""
    if not LABEL.fullmatch(plan.name) or len(plan.name) > longest:
        yield (
            f"--job-name {quote_name(plan.name)}: the name of a {plan.kind} has lower-case letters, digits, "
            f"dashes, begins with a letter, and has at most {longest} characters"
        )
    if not _NAMESPACE.fullmatch(plan.namespace):
        yield f"--namespace {quote_name(plan.namespace)}: not a valid name of a namespace"
    yield from _image_problems(plan)
    for flag, name, most in (
        ("--queue", plan.queue, _LONGEST_LABEL_VALUE),
        ("--priority-class", plan.priority_class, LONGEST_DNS_NAME),
        ("--volume", plan.claim, LONGEST_DNS_NAME),
        ("--secret", plan.secret_environment, LONGEST_DNS_NAME),
    ):
        if name and not _is_dns_name(name, most):
            yield f"{flag} {quote_name(name)}: {_DNS_RULE.format(most)}"
    yield from _token_problems(plan)
    for key, value in plan.node_selector.items():
        if key in (INSTANCE_TYPE, *HYPERPOD):
            yield f"cluster.pod.node_selector, {key}: the plan sets it, from --instance-type and the nodes"
        elif not _is_taint_key(key) or not _LABEL_VALUE.fullmatch(value):
            yield (
                f"cluster.pod.node_selector, {quote_name(key)}: {quote_name(value)}: not a label of nodes, "
                "such as sagemaker.amazonaws.com/instance-group-name: workers"
            )
    for key in plan.tolerations:
        if not _is_taint_key(key):
            yield (
                f"--tolerate {quote_name(key)}: the key of a taint has letters, digits and -_., at most "
                f"{_LONGEST_LABEL_VALUE}, and may have a prefix such as example.com/"
                f"{'' if key else '; an empty key would tolerate every taint'}"
            )


def _image_problems(plan: JobPlan) -> Iterator[str]:
    if not plan.image:
        yield "no image: name it with --image-uri, or set cluster.image"
    elif len(plan.image) > _LONGEST_IMAGE or not _IMAGE.fullmatch(plan.image):
        yield (
            f"--image-uri {quote_name(plan.image)}: not the name of an image, such as "
            "registry.example.com/team/train:1 or …/train@sha256:…"
        )


def _token_problems(plan: JobPlan) -> Iterator[str]:
    for token in plan.secrets:
        if not _is_dns_name(token.secret, LONGEST_DNS_NAME):
            yield f"--hf-token-secret {quote_name(token.secret)}: {_DNS_RULE.format(LONGEST_DNS_NAME)}"
        if token.key == "." or not _SECRET_KEY.fullmatch(token.key):
            yield (
                f"--hf-token-secret, key {quote_name(token.key)}: a key of a Secret has letters, digits and "
                "-_., and at most 253 characters"
            )


def _is_dns_name(name: str, most: int) -> bool:
    return len(name) <= most and _DNS_NAME.fullmatch(name) is not None


def _is_taint_key(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    known = not slash or _is_dns_name(prefix, LONGEST_DNS_NAME)
    return known and _QUALIFIED.fullmatch(name) is not None


def quote_name(name: str) -> str:
    """Return the first characters of a wrong name, in quotes unless it is one plain word."""
    shown = name[:_MOST_SHOWN]
    return (shown if _PLAIN.fullmatch(shown) else repr(shown)) + ("…" if shown != name else "")
