"""The kinds of jobs, one module per kind, which holds everything about it in one `JobKind`.

In: a `JobSpec`, or what a cluster shows of a job. Out: the objects that are applied for it, or its status. A
new kind is a module here and its line in JOB_KINDS of `config.registries`.
"""

from collections.abc import Mapping
from importlib import import_module

from trainyard.config.registries import JOB_KINDS
from trainyard.errors import ConfigError
from trainyard.jobs.job_kind import JobKind

KINDS: Mapping[str, JobKind] = {name: import_module(entry.module).KIND for name, entry in JOB_KINDS.items()}


def find_kind(name: str) -> JobKind:
    """Return the kind of this name. Raises ConfigError."""
    if name not in KINDS:
        raise ConfigError(f"{name}: not a kind of job; known: {', '.join(KINDS)}")
    return KINDS[name]
