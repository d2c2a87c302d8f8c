"""Decide each step of the set-up from what was found on GitHub. Pure, with one function per kind of step.

For a step that changes something the function is called twice: before the change and after it. The step is
done only when the second result is `ok`. Settings that somebody chose are kept, or shown before they are
replaced; nothing is removed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.github.runner_command import DRIVER_COMMAND
from trainyard.github.setup_step import (
    SecretChange,
    SetupChange,
    SetupStep,
    SetupVerdict,
    Todo,
    named_repository,
    on_host,
)
from trainyard.github.trust_verdict import WORKFLOW, Trusted, subjects_of
from trainyard.github.variables import LABELS, WATCH, labels_text

HERE, MACHINE, BROWSER = "here", "on the GPU machine", "in the browser"
CHECK_STEP, TRAIN_JOB, ROLE_STEP = "Check the environment", "Train and prove", "Assume the AWS role"
"""Names in training_ci.yml; a test checks that they are equal."""
STRICTEST = "all_external_contributors"
Json = Mapping[str, Any]


@dataclass(frozen=True)
class About:
    """The facts about the repository itself."""

    host: str
    name: str
    """`OWNER/REPO`."""
    page: str
    owner_id: int
    repository_id: int
    organisation: bool
    private: bool
    branch: str
    """The default branch."""
    created: str
    issues: bool

    @property
    def base(self) -> str:
        return f"repos/{self.name}"


def _ok(name: str, text: str) -> SetupStep:
    return SetupStep(name, SetupVerdict.OK, text)


def _change(
    name: str, text: str, *changes: SetupChange | SecretChange, overwrites: bool = False
) -> SetupStep:
    return SetupStep(name, SetupVerdict.CHANGE, text, changes, overwrites)


def _by_hand(name: str, text: str, *todo: Todo) -> SetupStep:
    """A step that only a person can do."""
    return SetupStep(name, SetupVerdict.YOU, text, todo=todo)


def repository_step(about: About) -> SetupStep:
    """Check the repository itself; `repository_api.refuse_unfit` has run before."""
    kind = "private" if about.private else "public"
    return _ok("repository", f"{kind}, no fork, not archived; you administer it")


def actions_step(found: Json, selected: Json, about: About, *, role: bool) -> SetupStep:
    """Whether Actions are enabled, and the actions that the workflows use are allowed."""
    name, settings = "actions", Todo(BROWSER, f"{about.page}/settings/actions")
    if not found.get("enabled"):
        body = {"enabled": True, "allowed_actions": found.get("allowed_actions") or "all"}
        change = SetupChange("PUT", f"{about.base}/actions/permissions", body)
        return _change(name, "Actions: off → on", change, overwrites=True)
    allowed = found.get("allowed_actions", "all")
    if allowed == "local_only":
        text = "only this owner's actions are allowed; the workflows need actions/*"
        return _by_hand(name, text, settings)
    if allowed == "selected" and not selected.get("github_owned_allowed"):
        return _by_hand(name, "GitHub's own actions are not allowed; the workflows need them", settings)
    aws = selected.get("verified_allowed") or any(
        "aws-actions/" in p for p in selected.get("patterns_allowed") or ()
    )
    if allowed == "selected" and role and not aws:
        return _by_hand(name, "aws-actions/configure-aws-credentials@* is not allowed", settings)
    return _ok(name, f"on, {allowed} actions allowed")


def workflow_step(found: Json | None, about: About) -> SetupStep:
    """Whether training_ci.yml is on the default branch and enabled."""
    name = "workflow"
    if found is None:
        push = Todo(HERE, f"git push origin {about.branch}")
        return _by_hand(name, f"{WORKFLOW} is not on {about.branch} yet", push)
    state = str(found.get("state"))
    if state == "active":
        return _ok(name, f"{WORKFLOW} is on {about.branch} and active")
    change = SetupChange("PUT", f"{about.base}/actions/workflows/{WORKFLOW}/enable")
    text = f"{WORKFLOW}: {state} → active"
    return _change(name, text, change, overwrites=state == "disabled_manually")


def fork_requests_step(found: Json, about: About) -> SetupStep:
    """Whether, in a public repository, every pull request from outside waits for an approval."""
    policy = found.get("approval_policy")
    if policy == STRICTEST:
        return _ok("fork PRs", "outside contributors wait for an approval, each time")
    path = f"{about.base}/actions/permissions/fork-pr-contributor-approval"
    change = SetupChange("PUT", path, {"approval_policy": STRICTEST})
    return _change("fork PRs", f"approval of outside pull requests: {policy} → {STRICTEST}", change)


def variable_step(row: str, name: str, about: About, *, found: str | None, wanted: str | None) -> SetupStep:
    """One variable of the repository; `wanted` is None to keep the present value."""
    if found and wanted in (None, found):
        return _ok(row, f"{name} = {found}")
    if wanted is None:
        return _by_hand(row, f"{name} is not set")
    text = f"{name}: {found} → {wanted}" if found else f"{name} = {wanted}"
    return _change(row, text, _set(name, wanted, found, about), overwrites=bool(found))


def _set(name: str, value: str, found: str | None, about: About) -> SetupChange:
    """The call that sets a variable. A variable with an empty value exists, so it is updated, not created."""
    path, body = f"{about.base}/actions/variables", {"name": name, "value": value}
    return SetupChange("POST", path, body) if found is None else SetupChange("PATCH", f"{path}/{name}", body)


def environment_step(name: str, found: Json | None, policies: Sequence[Json], about: About) -> SetupStep:
    """Whether an environment exists and is limited to the default branch (`release`: to version tags)."""
    pattern, kind = ("v*", "tag") if name == "release" else (about.branch, "branch")
    path, limit = f"{about.base}/environments/{name}", f"{'tags ' if kind == 'tag' else ''}{pattern}"
    add = SetupChange("POST", f"{path}/deployment-branch-policies", {"name": pattern, "type": kind})
    settings = Todo(BROWSER, f"{about.page}/settings/environments")
    row = f"env {name}"
    if found is None:
        return _change(row, f"new, limited to {limit}", _environment_put(path, {}), add)
    rule = found.get("deployment_branch_policy")
    if not (rule or {}).get("custom_branch_policies"):
        before = "protected branches" if rule else "every branch may use it"
        text = f"{before} → limited to {limit}"
        return _change(row, text, _environment_put(path, found), add, overwrites=bool(rule))
    others = [p for p in policies if (p.get("name"), p.get("type", "branch")) != (pattern, kind)]
    if len(others) == len(policies):
        return _change(row, f"{_names(others) or 'no branch'} may use it → {limit} too", add)
    if others:
        remove = (
            Todo(HERE, f"{on_host(about.host)}gh api --method DELETE {add.path}/{policy.get('id')}")
            for policy in others
        )
        text = f"limited to {limit}, and {_names(others)} too: remove those that should not be allowed"
        return _by_hand(row, text, *remove, settings)
    more = "; add a reviewer before you release" if name == "release" and not _reviewers(found) else ""
    return _ok(row, f"limited to {limit}{more}")


def environment_refused(name: str, message: str, about: About) -> SetupStep:
    """The step for an environment that GitHub's plan does not offer in a private repository."""
    text = (
        f"{message.rstrip('.')}; in a private repository environments need GitHub Pro, Team or Enterprise. "
        "Without them any branch may use the secrets: --no-environments accepts that"
    )
    return _by_hand(f"env {name}", text, Todo(BROWSER, f"https://{about.host}/settings/billing/plans"))


def secret_step(change: SecretChange, found: Sequence[str], *, can_ask: bool, about: About) -> SetupStep:
    """One wanted secret; only its name can be compared, because GitHub never shows a value."""
    place = f"environment {change.environment}" if change.environment else "the repository"
    row = "secret"
    if change.name in found:
        return _ok(row, f"{change.name} is in {place}; a value is never read")
    if can_ask:
        return _change(row, f"{change.name} in {place}", change)
    line = change.command_line(about.host, about.name)
    return _by_hand(row, f"{change.name} is not in {place}", Todo(HERE, line))


def role_step(trusted: Trusted, held: Json | None, why_not: str, *, assumed_by: str) -> SetupStep:
    """Whether the role trusts this repository, according to AWS or because a run has assumed it."""
    name, todo = "aws role", tuple(Todo(HERE, line) for line in trusted.commands())
    subject = trusted.subject.text(trusted.form)
    if held is not None and trusted.fits(held):
        return _ok(name, f"{trusted.name} trusts {subject}")
    if held is not None:
        text = f"{trusted.name} trusts {_listed(subjects_of(held)) or 'no subject of GitHub'} → {subject}"
        return _by_hand(name, text, *todo)
    if assumed_by:
        return _ok(name, f"{trusted.name} was assumed by run {assumed_by}")
    if "NoSuchEntity" in why_not:
        create = (todo[0], Todo(HERE, trusted.create_command()))
        text = f"AWS has no role {trusted.name}; its policy is in docs/runbooks/permissions.md#artifacts"
        return _by_hand(name, text, *create)
    text = f"whether {trusted.name} trusts {subject} is not known: {why_not}. A run that assumes it proves it"
    return _by_hand(name, text, *todo)


def role_of_other_issuer(why: str, *, assumed_by: str) -> SetupStep:
    """The step for a role whose policy we cannot write: only a run shows that it works."""
    if assumed_by:
        return _ok("aws role", f"was assumed by run {assumed_by}")
    return _by_hand("aws role", f"{why}: write its trust policy by hand; a run that assumes it proves it")


def runner_step(
    fitting: Sequence[Json], labels: Sequence[str], *, remark: str = "", todo: Sequence[Todo] = ()
) -> SetupStep:
    """Whether a runner with all labels is online; `todo` has the commands that register one."""
    name, wanted = "runner", ", ".join(labels)
    online = [each for each in fitting if each.get("status") == "online"]
    if online:
        return _ok(name, f"{_listed(str(each.get('name')) for each in online)} online with {wanted}")
    if fitting:
        names = _listed(str(each.get("name")) for each in fitting)
        look = Todo(MACHINE, "sudo systemctl status 'actions.runner.*'    # and restart, if it is stopped")
        return _by_hand(name, f"{names} has {wanted} and is offline", look)
    text = f"no runner with the labels {wanted} is registered{remark}"
    return _by_hand(name, text, *todo)


def unregistered_runner(
    labels: Sequence[str], *, machines: Sequence[Json] = (), ran: str = "", remark: str = ""
) -> SetupStep:
    """Whether a machine that nobody registers takes jobs: GitHub lists it, or a run had it.

    GitHub's API lists no scale sets, and of an organisation only its own machines at GitHub.
    """
    name, wanted = "runner", ", ".join(labels)
    if machines:
        return _ok(name, f"{machines[0].get('name')} is a machine of GitHub: {machines[0].get('status')}")
    if ran:
        return _ok(name, f"run {ran} had a machine with {wanted}")
    text = f"whether a machine with {wanted} takes jobs is not known{remark}: the first run shows it"
    return SetupStep(name, SetupVerdict.WAITS, text)


def unknown_kind(labels: Sequence[str], script: str) -> SetupStep:
    """The step for labels that GitHub lists nowhere, so that they may name any kind of machine."""
    names = ",".join(labels)
    text = (
        f"no runner has {names} yet, and each kind needs other labels. Say which it is with --runner: "
        "self-hosted (a machine that you register), scale-set (actions-runner-controller), hosted (GitHub's "
        "own) or other"
    )
    return _by_hand("runner labels", text, Todo(HERE, f"{script} --labels {names} --runner KIND"))


def unnamed_machine(kind: str) -> SetupStep:
    """The step for a kind of machine without its name."""
    return _by_hand("runner labels", f"--runner {kind} needs the name of the machine: --labels NAME")


def lacking_labels(
    runners: Sequence[Json], labels: Sequence[str], about: About
) -> tuple[str, tuple[Todo, ...]]:
    """The labels that each registered runner lacks, and the calls that add them."""
    said, todo = "", []
    for each in runners[:3]:
        has = {str(label.get("name")).casefold() for label in each.get("labels", ())}
        missing = [label for label in labels if label.casefold() not in has]
        said += f"; {each.get('name')} lacks {', '.join(missing)}"
        body = {"labels": missing}
        give = SetupChange("POST", f"{about.base}/actions/runners/{each.get('id')}/labels", body)
        note = f"if {each.get('name')} is the intended runner"
        todo.append(Todo(HERE, give.command_line(about.host, about.name), note))
    return said, tuple(todo)


def public_runner(about: About) -> SetupStep:
    """The step for a public repository, which gets a runner only with --allow-public."""
    text = (
        "the repository is public, so pull requests from strangers could reach your machine: make it "
        "private, or accept that with --allow-public"
    )
    return _by_hand("runner", text, Todo(BROWSER, f"{about.page}/settings#danger-zone"))


def fitting_runners(runners: Sequence[Json], labels: Sequence[str]) -> list[Json]:
    """The runners with all labels; GitHub ignores their case."""
    return [
        each for each in runners if _has([str(label.get("name")) for label in each.get("labels", ())], labels)
    ]


def watch_step(found: str | None, *, registered: bool, wanted: bool, about: About) -> SetupStep:
    """Whether the watchdog is on; it is turned on only once a runner is registered."""
    note = "" if about.issues else "; issues are off, so it can open none"
    if found:
        return _ok("watchdog", f"{WATCH} = {found}{note if found == 'on' else ''}")
    if not wanted:
        return SetupStep("watchdog", SetupVerdict.OPTIONAL, f"{WATCH} is not set: nothing watches the runner")
    if not registered:
        return SetupStep("watchdog", SetupVerdict.WAITS, f"{WATCH} = on, once a runner is registered")
    return _change("watchdog", f"{WATCH} = on{note}", _set(WATCH, "on", found, about))


@dataclass(frozen=True)
class Trained:
    """The results of the training workflow's newest runs on runners with the labels."""

    checked: str = ""
    """The result of the newest check of the machine: `success` or `failure`; empty when there was none."""
    check_run: str = ""
    """The number of the run that made this check, as GitHub's pages show it."""
    check_id: str = ""
    """The same run's id, for `gh run view`."""
    proven_run: str = ""
    """The number of a run whose training job was green; empty when there is none."""
    last: str = ""
    """Number and result of the newest run of all."""
    role_run: str = ""
    """The number of a run that assumed the role."""


def find_trained(
    runs: Sequence[tuple[Json, Sequence[Json]]], labels: Sequence[str], role_since: str
) -> Trained:
    """Read the results from the runs, newest first, each with its jobs.

    A run that only showed its plan is green too, so only the training job counts. `role_since` is the time,
    as GitHub writes it, when the role's variable was set: an earlier run may have assumed another role.
    """
    checked = check_run = check_id = proven = assumed = ""
    for run, jobs in runs:
        number = str(run.get("run_number"))
        for job in jobs:
            if job.get("name") != TRAIN_JOB:
                continue
            ends = {str(step.get("name")): step.get("conclusion") for step in job.get("steps") or ()}
            if str(run.get("created_at")) > role_since and ends.get(ROLE_STEP) == "success":
                assumed = assumed or number
            if not _has([str(label) for label in job.get("labels") or ()], labels):
                continue
            if not checked and ends.get(CHECK_STEP) in ("success", "failure"):
                checked, check_run, check_id = str(ends[CHECK_STEP]), number, str(run.get("id"))
            proven = proven or (number if job.get("conclusion") == "success" else "")
    newest = runs[0][0] if runs else {}
    last = f"{newest.get('run_number')}: {newest.get('conclusion') or newest.get('status')}" if runs else ""
    return Trained(checked, check_run, check_id, proven, last, assumed)


def machine_step(found: Trained, *, command_shown: bool, about: About) -> SetupStep:
    """Whether the GPU machine and its driver can train, according to scripts/check_environment.py there."""
    name = "gpu machine"
    if found.checked == "success":
        return _ok(name, f"run {found.check_run} found driver, GPU and disk fit to train")
    if found.checked:
        look = Todo(
            HERE,
            f"gh run view {found.check_id} --repo {named_repository(about.host, about.name)} --log-failed",
        )
        return _by_hand(name, f"run {found.check_run} found the machine not fit to train", look)
    note = "only where the command above says that the driver is missing or too old"
    todo = (Todo(MACHINE, DRIVER_COMMAND, note),) if command_shown else ()
    return SetupStep(name, SetupVerdict.WAITS, "the first run checks its driver, GPU and disk", todo=todo)


def first_run(found: Trained, *, ready: bool, about: About) -> SetupStep:
    """Whether a training job was green on that runner."""
    if found.proven_run:
        return _ok("first green", f"run {found.proven_run} trained and was proven")
    after = f"; the newest is {found.last}" if found.last else ""
    repository = named_repository(about.host, about.name)
    line = f"gh workflow run {WORKFLOW} --repo {repository} -f config=configs/smoke.yaml"
    verdict, note = (SetupVerdict.YOU, "") if ready else (SetupVerdict.WAITS, "once a runner is online")
    return SetupStep(
        "first green", verdict, f"no training was proven yet{after}", todo=(Todo(HERE, line, note),)
    )


def branch_rule(found: Sequence[Json] | None, about: About) -> SetupStep:
    """Whether the default branch requires the check `ci`; optional, since a rule also blocks your pushes."""
    checks = [
        check.get("context")
        for rule in found or ()
        if rule.get("type") == "required_status_checks"
        for check in (rule.get("parameters") or {}).get("required_status_checks", ())
    ]
    if "ci" in checks:
        return _ok("branch rule", f"{about.branch} requires the check ci")
    why = f"{about.branch} does not require the check ci"
    if found is None:
        why = "could not be read: not on this plan?"
    return SetupStep("branch rule", SetupVerdict.OPTIONAL, f"{why}; {about.page}/settings/rules")


def labels_row(
    found: str | None, wanted: Sequence[str] | None, default: Sequence[str], about: About
) -> SetupStep:
    """The labels: the wanted ones, else the present ones, else the default."""
    value = labels_text(wanted) if wanted else (None if found else labels_text(default))
    return variable_step("runner labels", LABELS, about, found=found, wanted=value)


def _environment_put(path: str, found: Json) -> SetupChange:
    """The call that limits an environment and keeps its other settings.

    Reviewers and wait timers are sent only if there are some: below the Enterprise plan, GitHub refuses a
    call with these keys in a private repository.
    """
    body: dict[str, Any] = {
        "deployment_branch_policy": {"protected_branches": False, "custom_branch_policies": True}
    }
    for rule in found.get("protection_rules") or ():
        if rule.get("type") == "wait_timer" and rule.get("wait_timer"):
            body["wait_timer"] = rule["wait_timer"]
        if rule.get("type") == "required_reviewers":
            body["prevent_self_review"] = bool(rule.get("prevent_self_review"))
    if _reviewers(found):
        body["reviewers"] = _reviewers(found)
    return SetupChange("PUT", path, body)


def _reviewers(found: Json) -> list[dict[str, Any]]:
    return [
        {"type": each.get("type"), "id": (each.get("reviewer") or {}).get("id")}
        for rule in found.get("protection_rules") or ()
        if rule.get("type") == "required_reviewers"
        for each in rule.get("reviewers") or ()
    ]


def _has(labels: Sequence[str], wanted: Sequence[str]) -> bool:
    return {label.casefold() for label in wanted} <= {label.casefold() for label in labels}


def _names(policies: Sequence[Json]) -> str:
    return _listed(str(policy.get("name")) for policy in policies)


def _listed(names: Any) -> str:
    return ", ".join(list(names)[:5])
