"""Find names of a job that Kubernetes refuses, by the rules that the keys of the YAML have.

The API server accepts some of these names in a job and refuses only the pods that are made from it, so such a
job would wait without end. Preflight checks whether the objects of these names exist.
"""

import re
from collections.abc import Iterator

from trainyard.config.cluster import DNS_NAME, LONGEST_DNS_NAME
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.pod_template import HYPERPOD, INSTANCE_TYPE

_MOST_SHOWN = 80
_PLAIN = re.compile(r"[!-~]+")
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
"""A DNS-1035 label, because operators name Services after it."""
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_DNS_NAME = re.compile(DNS_NAME)
_DNS_RULE = (
    "a name has lower-case letters, digits, dashes and dots, and begins and ends with a letter or digit"
)
_LONGEST_LABEL = 63
_SECRET_KEY = re.compile(r"(?!\.\.|\.$)[-._A-Za-z0-9]+")
_KEY_RULE = "a key of a Secret has letters, digits and -_."
_QUALIFIED = r"[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_NODE_KEY = re.compile(rf"(?:(?=[^/]{{1,{LONGEST_DNS_NAME}}}/){DNS_NAME[1:-1]}/)?{_QUALIFIED}")
"""The key of a label or a taint of nodes, with an optional prefix `example.com/`."""
_TAINT_RULE = (
    "the key of a taint has letters, digits and -_., at most 63, and may have a prefix such as example.com/"
)
_LABEL_RULE = "not a label, such as sagemaker.amazonaws.com/instance-group-name: workers"
_OF_NODES = [
    (f"{re.escape(key)}$", "from --instance-type and the nodes") for key in (INSTANCE_TYPE, *HYPERPOD)
]
_OF_JOBS = [
    (r"trainyard\.dev/|app\.kubernetes\.io/managed-by$", "by which it finds the job's objects"),
    (r"kueue\.x-k8s\.io/queue-name$", "from --queue (cluster.queue)"),
]
"""Keys of labels, and where the plan has their values from."""
_LABEL_VALUE = re.compile(rf"({_QUALIFIED})?")
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::[0-9]+)?/)?{_PART}(?:/{_PART})*"
    r"(?::\w[\w.-]{0,127})?(?:@[A-Za-z][\w.+-]*:[0-9a-fA-F]{32,128})?",
    re.ASCII,
)
"""The grammar of references (github.com/distribution/reference)."""
_IMAGE_RULE = "not the name of an image, such as registry.example.com/team/train:1 or …/train@sha256:…"
_LONGEST_IMAGE, _LONGEST_KEY = 512, 2 * LONGEST_DNS_NAME


def find_name_problems(plan: JobSpec, *, longest: int) -> Iterator[str]:
    """Yield the problems; the job's own name may have at most `longest` characters."""
    of_jobs = f"the name of a {plan.kind} has lower-case letters, digits, dashes, begins with a letter"
    optional = (
        ("--queue", plan.queue, _LONGEST_LABEL),
        ("--priority-class", plan.priority_class, LONGEST_DNS_NAME),
        ("--volume", plan.claim, LONGEST_DNS_NAME),
        ("--secret", plan.secret_environment, LONGEST_DNS_NAME),
    )
    rules = [
        ("--job-name", plan.name, LABEL, of_jobs, longest),
        ("--namespace", plan.namespace, _NAMESPACE, "not a valid name of a namespace", _LONGEST_LABEL),
        *((flag, name, _DNS_NAME, _DNS_RULE, most) for flag, name, most in optional if name),
        *(("--tolerate", key, _NODE_KEY, _TAINT_RULE, _LONGEST_KEY) for key in plan.tolerations),
    ]
    if plan.image:
        rules.append(("--image-uri", plan.image, _IMAGE, _IMAGE_RULE, _LONGEST_IMAGE))
    else:
        yield "no image: name it with --image-uri, or set cluster.image"
    for each in plan.secrets:
        rules.append(("--hf-token-secret", each.secret, _DNS_NAME, _DNS_RULE, LONGEST_DNS_NAME))
        rules.append(("--hf-token-secret, key", each.key, _SECRET_KEY, _KEY_RULE, LONGEST_DNS_NAME))
    for flag, name, pattern, rule, most in rules:
        if len(name) > most or not pattern.fullmatch(name):
            yield f"{flag} {quote_name(name)}: {rule} (at most {most} characters)"
    own = (plan.template.get("metadata") or {}).get("labels") or {}
    for place, labels, owned in (
        ("cluster.pod.node_selector", plan.node_selector, _OF_NODES),
        ("cluster.labels", plan.labels, _OF_JOBS),
        ("cluster.annotations", dict.fromkeys(plan.annotations, ""), _OF_JOBS),
        ("cluster.pod.template.metadata.labels", own, _OF_JOBS),
    ):
        for key, value in labels.items():
            if by := next((by for pattern, by in owned if re.match(pattern, key)), ""):
                yield f"{place}, {key}: the plan sets it, {by}"
            elif not _NODE_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value or ""):
                yield f"{place}, {quote_name(key)}: {quote_name(value)}: {_LABEL_RULE}"


def quote_name(name: str) -> str:
    """Return the first characters of a wrong name, in quotes unless it is one plain word."""
    shown = name[:_MOST_SHOWN]
    return (shown if _PLAIN.fullmatch(shown) else repr(shown)) + ("…" if shown != name else "")
