"""The kinds of jobs, one module per kind, which holds everything about it in one `JobKind`.

In: a `JobSpec`, or what a cluster shows of a job. Out: the objects that are applied for it, or its status. A
new kind is a module here and its line in JOB_KINDS of `config.registries`.
"""

from collections.abc import Mapping
from importlib import import_module

from trainyard.config.registries import FOREIGN_JOB_KINDS, JOB_KINDS
from trainyard.errors import ConfigError
from trainyard.jobs.job_kind import JobKind

KINDS: Mapping[str, JobKind] = {name: import_module(entry.module).KIND for name, entry in JOB_KINDS.items()}
"""The kinds of the jobs that are made here."""
EVERY_KIND: Mapping[str, JobKind] = {
    **KINDS,
    **{name: import_module(entry.module).KIND for name, entry in FOREIGN_JOB_KINDS.items()},
}
"""These, and the kinds that are only followed."""


def kinds_of_cluster(name: str) -> tuple[JobKind, ...]:
    """Return the kinds that a cluster is queried for: those that are made here, and the one of this name."""
    return tuple(kind for kind in EVERY_KIND.values() if kind.name in (*KINDS, name))


def find_kind(name: str) -> JobKind:
    """Return the kind of this name. Raises ConfigError."""
    if name not in EVERY_KIND:
        raise ConfigError(f"{name}: not a kind of job; known: {', '.join(EVERY_KIND)}")
    return EVERY_KIND[name]
