"""Judge whether everything outside this machine is ready for a run: store, run number, signing key, role.

Pure: the services' answers are passed in as `Answers`; here they become findings with fixes.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from trainyard.machine.preflight import failure, success
from trainyard.plan.finding import Finding


@dataclass(frozen=True)
class Answers:
    """The answers of the store, the signing key and the role."""

    url: str
    """The store's address, as it was given."""
    run_id: str
    again: str
    """The command that repeats the check, up to the store's address."""
    is_here: bool = True
    """Whether this machine has the record of the run; if not, the store may have another run of its id."""
    written: bool = True
    """Whether the check also wrote to the store."""
    problems: tuple[str, ...] = ()
    """Why the store cannot be used."""
    is_able: bool = True
    """False if the store lacks an operation that storing a run needs: a retry does not help."""
    is_address: bool = True
    """False if the address names no store at all: only another address helps."""
    number: int | None = None
    """The requested run number, or the next free one; None when it could not be looked up."""
    owner: str | None = None
    """The run that has the number; None when it is free, empty when the run's record cannot be read."""
    free: int | None = None
    """The next free number, if another run has this one."""
    signing: str = ""
    """How the manifest will be signed; empty when it will not be signed."""
    signing_problem: str = ""
    role: str = ""
    """The role to be assumed; empty when there is none."""
    role_problem: str = ""
    """Why the role could not be assumed; the store was then not queried."""


def judge_readiness(answers: Answers) -> tuple[Finding, ...]:
    """The findings of all checks, in the order in which they are shown."""
    return (*_role(answers), *_store(answers), *_number(answers), *_signing(answers))


def store_line(answers: Answers) -> str:
    """One line: `file:///a/trainyard-store writable, run 4 is free`."""
    return f"{answers.url} {'writable' if answers.written else 'readable'}, {number_text(answers)}"


def hanging_message(url: str, seconds: float, endpoint: str | None) -> str:
    """The message that the store at `url` does not answer."""
    where = f" at {endpoint}" if endpoint and url.startswith("s3:") else ""
    return (
        f"{url}{where} gave no answer within {seconds:g} seconds: it hangs, or a firewall drops what is sent "
        "to it."
    )


def number_text(answers: Answers) -> str:
    """`run 4 is free`, `run 4 is this run's`, `run 4 has this id` or `run 4 is another run's`."""
    if answers.owner is None:
        return f"run {answers.number} is free"
    if answers.owner != answers.run_id:
        return f"run {answers.number} is another run's"
    words = "is this run's" if answers.is_here else "has this id"
    return f"run {answers.number} {words}"


def _role(answers: Answers) -> Iterator[Finding]:
    if answers.role_problem:
        again = f"{answers.again} {shlex.quote(answers.url)}"
        yield failure("role", answers.role_problem, f"fix that, then check again in seconds: {again}")
    elif answers.role:
        yield success("role", f"{answers.role} can be assumed")


def _store(answers: Answers) -> Iterator[Finding]:
    if answers.role_problem:
        return
    fix = f"fix that, then check again in seconds: {answers.again} {shlex.quote(answers.url)}"
    if not (answers.is_address and answers.is_able):
        fix = f"name another store, and check it in seconds: {answers.again} s3://BUCKET/PREFIX"
    if answers.url.startswith("file:"):
        another = f"{answers.again} file:///FOLDER"
        fix = f"name a folder that this user may write and that has room, and check it in seconds: {another}"
    for problem in answers.problems:
        yield failure("store", problem, fix)
    if not answers.problems:
        can = "can be written to" if answers.written else "can be read; nothing was written"
        yield success("store", f"{answers.url} {can}")


def _number(answers: Answers) -> Iterator[Finding]:
    if answers.number is None:
        return
    if answers.owner in (None, answers.run_id):
        yield success("run number", number_text(answers))
        return
    owner = answers.owner or "(unreadable record)"
    yield failure(
        "run number",
        f"{answers.number} in {answers.url} belongs to run {owner}; this is run {answers.run_id}",
        f"take a free one: --run-number {answers.free}, or --run-number auto. GitHub and CodeBuild count "
        "runs by themselves: there, give the store a prefix of its own (TRAINYARD_STORE)",
    )


def _signing(answers: Answers) -> Iterator[Finding]:
    if answers.signing_problem:
        fix = "the manifest is signed when the run is stored: see docs/runbooks/signing.md"
        yield failure("signing", answers.signing_problem, fix)
    elif answers.signing:
        yield success("signing", answers.signing)
