"""Whether everything outside this machine is ready for a run: store, run number, signing key, role. Pure.

What was asked, and what came of it, is handed in as `Answers`; here it becomes findings and their fixes.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from trainyard.cluster.preflight import Finding, Verdict

_ROOM = 52
"""Characters of a store's address that leave its line within a terminal of 80 columns and a verdict."""


@dataclass(frozen=True)
class Answers:
    """What the store, the key and the role said."""

    url: str
    """The store's address, as it was given."""
    run_id: str
    again: str
    """The command that asks once more, up to the store's address."""
    written: bool = True
    """Whether something was written, too."""
    asked: bool = True
    """False where the store was not asked, because the role could not be assumed."""
    problems: tuple[str, ...] = ()
    """Why the store cannot be used."""
    is_address: bool = True
    """False where the text names no store at all: another address is the only fix."""
    notes: tuple[str, ...] = ()
    number: int | None = None
    """The run number that was asked for, or the next free one; None when it could not be looked up."""
    owner: str | None = None
    """The run that has it; None when it is free, empty when its record cannot be read."""
    free: int | None = None
    """The next free number, where this one is another run's."""
    signing: str = ""
    """How the manifest will be signed; empty when it will not be."""
    signing_problem: str = ""
    signing_is_away: bool = False
    """The problem is that Sigstore cannot be reached now."""
    role: str = ""
    """The role that was to be assumed; empty where none is."""
    role_is_assumed: bool = True


def judge_readiness(answers: Answers) -> tuple[Finding, ...]:
    """Every check's answer, in the order people read them."""
    return (*_role(answers), *_store(answers), *_number(answers), *_signing(answers))


def store_line(answers: Answers) -> str:
    """One line: `file:///…/trainyard-store writable, run 4 is free`."""
    url = answers.url
    if len(url) > _ROOM:
        scheme, _, rest = url.partition("://")
        url = f"{scheme}://…{rest[len(scheme) + 4 - _ROOM :]}"
    return f"{url} {'writable' if answers.written else 'readable'}, {number_text(answers)}"


def hanging(url: str, seconds: float, endpoint: str | None) -> str:
    """That nothing was answered, and who should have."""
    where = f" at {endpoint}" if endpoint and url.startswith("s3:") else ""
    return (
        f"{url}{where} gave no answer within {seconds:g} seconds: it hangs, or a firewall drops what is sent "
        "to it."
    )


def number_text(answers: Answers) -> str:
    """`run 4 is free`, or whose it is."""
    if answers.owner is None:
        return f"run {answers.number} is free"
    whose = "this run's" if answers.owner == answers.run_id else "another run's"
    return f"run {answers.number} is {whose}"


def _role(answers: Answers) -> Iterator[Finding]:
    if answers.role and answers.role_is_assumed:
        yield Finding("role", Verdict.OK, f"{answers.role} can be assumed")
    elif answers.role:
        yield Finding(
            "role",
            Verdict.FAILED,
            f"{answers.role} could not be assumed with GitHub's OIDC token; the step before says why",
            "compare its trust policy with docs/runbooks/permissions.md#aws-role: the subject is that of the "
            "environment training, in the form that this repository has",
        )


def _store(answers: Answers) -> Iterator[Finding]:
    if not answers.asked:
        return
    fix = f"mend that, and ask again in seconds: {answers.again} {shlex.quote(answers.url)}"
    if not answers.is_address:
        fix = f"name another store, and ask it in seconds: {answers.again} s3://BUCKET/PREFIX"
    if answers.url.startswith("file:"):
        another = f"{answers.again} file:///FOLDER"
        fix = f"name a folder that this user may write and that has room, and ask it in seconds: {another}"
    for problem in answers.problems:
        yield Finding("store", Verdict.FAILED, problem, fix)
    if not answers.problems:
        can = "can be written to" if answers.written else "can be read; nothing was written"
        yield Finding("store", Verdict.OK, "; ".join((f"{answers.url} {can}", *answers.notes)))


def _number(answers: Answers) -> Iterator[Finding]:
    if answers.number is None:
        return
    if answers.owner in (None, answers.run_id):
        yield Finding("run number", Verdict.OK, number_text(answers))
        return
    owner = answers.owner or "(unreadable record)"
    yield Finding(
        "run number",
        Verdict.FAILED,
        f"{answers.number} in {answers.url} belongs to run {owner}; this is run {answers.run_id}",
        f"take a free one: --run-number {answers.free}, or --run-number auto. GitHub and CodeBuild count "
        "runs by themselves: there, give the store a prefix of its own (TRAINYARD_STORE)",
    )


def _signing(answers: Answers) -> Iterator[Finding]:
    if answers.signing_problem:
        verdict = Verdict.DEGRADED if answers.signing_is_away else Verdict.FAILED
        fix = "the manifest is signed when the run is stored: see docs/runbooks/signing.md"
        yield Finding("signing", verdict, answers.signing_problem, fix)
    elif answers.signing:
        yield Finding("signing", Verdict.OK, answers.signing)
