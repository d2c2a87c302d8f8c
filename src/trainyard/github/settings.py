"""The settings that a repository needs to train: one table, each row with how to read, check and set it.

`Settings.rows` is the table. The function of a row reads GitHub and returns the state: correct, a person's
task, or a change with the calls that make it. It is called again after its change, so that a row is done only
when GitHub shows it. Settings that somebody chose are kept, or shown before they are replaced; nothing is
removed. The functions that query GitHub, AWS and the person are passed in.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from trainyard.errors import ConfigError
from trainyard.github.job_times import deadline_of
from trainyard.github.repository import GITHUB, RefusedError, Repository, list_items, request
from trainyard.github.runner_command import DRIVER_COMMAND, Registration, runner_command
from trainyard.github.runner_version import version_problem
from trainyard.github.setup_step import (
    BROWSER,
    HERE,
    MACHINE,
    SecretChange,
    SetupChange,
    SetupStep,
    SetupVerdict,
    Todo,
    repository_argument,
)
from trainyard.github.trust_policy import WORKFLOW, Trusted, is_immutable, subjects_of
from trainyard.github.variables import (
    CLUSTER,
    CODEBUILD,
    DEADLINE,
    DEFAULT_LABELS,
    ENVIRONMENTS,
    HOSTED_MINUTES,
    JOB_MINUTES,
    LABELS,
    NOTIFY,
    ROLE,
    RUNS_DIRECTORY,
    STORE,
    WATCH,
    RunnerKind,
    is_pod_of_scale_set,
    is_self_hosted,
    labels_for,
    labels_text,
    parse_runner_labels,
    runner_kind,
)

if TYPE_CHECKING:
    from trainyard.github.repository import Ask

CHECK_STEP, TRAIN_JOB, ROLE_STEP = "Check", "Train and prove", "Prove"
"""Names in training_ci.yml; a test checks that they are equal."""
NEWEST_RUNS = 10
SCRIPT = "PYTHONPATH=src python3 -m trainyard init github"
STRICTEST = "all_external_contributors"
Json = Mapping[str, Any]
AskAws = Callable[[str], tuple[Json | None, str]]
"""Role name -> its trust policy, or the reason why it could not be read."""


@dataclass(frozen=True)
class WantedSetup:
    """The wanted settings; an empty value keeps the present one."""

    labels: Sequence[str] = ()
    group: str = ""
    """The organisation's runner group, used together with the labels."""
    kind: RunnerKind | None = None
    """The kind of machine that the labels name; None to find it out."""
    store: str = ""
    role: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    secrets: Sequence[tuple[str, str]] = ()
    """Environment and name of each secret."""
    watch: bool = True
    environments: bool = True
    allow_public: bool = False


@dataclass(frozen=True)
class ChangePolicy:
    """Policy for changes: which are made, which need consent, and how a secret is set."""

    dry_run: bool
    confirm: Callable[[SetupStep], bool]
    """Shows the person a change that replaces something, and returns whether it may be made."""
    can_ask: Callable[[str], bool]
    """Whether the value of a secret is given or can be asked for."""
    set_secret: Callable[[SecretChange], None]
    """Raises ServiceError."""


@dataclass(frozen=True)
class Trained:
    """The results of the training workflow's newest runs on runners with the labels; runs by their number."""

    checked: str = ""
    """The result of the newest check of the machine: `success` or `failure`; empty when there was none."""
    check_run: str = ""
    check_id: str = ""
    """The id of the run that made this check, for `gh run view`."""
    proven_run: str = ""
    """Number of a run whose training job was green."""
    last: str = ""
    """Number and result of the newest run of all."""
    role_run: str = ""
    """Number of a run that assumed the role."""


class Settings:
    """The table of the settings of one repository; a later row may use what an earlier one found."""

    def __init__(
        self,
        ask: "Ask",
        repository: Repository,
        wanted: WantedSetup,
        policy: ChangePolicy,
        *,
        ask_aws: AskAws,
    ) -> None:
        self._ask, self._repository, self._base = ask, repository, repository.base
        self._wanted, self._policy, self._ask_aws = wanted, policy, ask_aws
        self._labels: Sequence[str] = tuple(wanted.labels) or DEFAULT_LABELS
        self._group = wanted.group
        self._script = f"{SCRIPT} --repository {self._for_gh}"
        self._kind: RunnerKind | None = RunnerKind.SELF_HOSTED
        self._store, self._role, self._role_since = wanted.store, wanted.role, ""
        self._is_registered = self._is_command_shown = False
        self._missing: frozenset[str] = frozenset()
        """Wanted environments that do not exist."""
        self._variables: dict[str, dict[str, Any]] | None = None
        self._trained: Trained | None = None
        self.verdicts: dict[str, SetupVerdict] = {}
        """The verdicts of the earlier rows, written by the caller."""

    def rows(self) -> Iterator[tuple[str, Callable[[], SetupStep]]]:
        """Yield name and function of each row, in order."""
        wanted = self._wanted
        yield "repository", self._check_repository
        yield "actions", self._check_actions
        yield "workflow", self._check_workflow
        if not self._repository.is_private:
            yield "fork PRs", self._check_fork_requests
        yield "runner labels", self._check_labels
        if self._kind is RunnerKind.HOSTED and JOB_MINUTES not in wanted.variables:
            yield "variable", self._check_job_minutes
            if DEADLINE not in wanted.variables and self._value(DEADLINE):
                yield "variable", self._check_deadline
        yield "store", self._check_store
        role = {ROLE: wanted.role} if wanted.role else {}
        for name, value in {**wanted.variables, **role}.items():
            yield "variable", partial(self._check_variable, name, value)
        for name in ENVIRONMENTS if wanted.environments else ():
            yield f"env {name}", partial(self._check_environment, name)
        if wanted.environments and any(place == NOTIFY for place, _ in wanted.secrets):
            yield f"env {NOTIFY}", self._check_open_environment
        for place, name in wanted.secrets:
            yield "secret", partial(self._check_secret, place if wanted.environments else "", name)
        if self._labels or self._group:
            yield "runner", self._check_runner
        yield "gpu machine", self._check_machine
        if self._role:
            yield "aws role", self._check_aws_role
        yield "watchdog", self._check_watchdog
        yield "first green", self._check_first_run
        yield "branch rule", self._check_branch_rule

    def forget_variables(self) -> None:
        """Drop the variables that were read, so that the next use reads them again."""
        self._variables = None

    def _check_repository(self) -> SetupStep:
        kind = "private" if self._repository.is_private else "public"
        return _ok(f"{kind}, no fork, not archived; you administer it")  # `get_repository` refuses others

    def _check_actions(self) -> SetupStep:
        path = f"{self._base}/actions/permissions"
        found = self._get(path)
        allowed = found.get("allowed_actions", "all")
        selected = self._get(f"{path}/selected-actions") if allowed == "selected" else {}
        page = Todo(BROWSER, f"{self._repository.page}/settings/actions")
        if not found.get("enabled"):
            body = {"enabled": True, "allowed_actions": found.get("allowed_actions") or "all"}
            return _change("Actions: off → on", SetupChange("PUT", path, body), overwrites=True)
        if allowed == "local_only":
            return _by_hand("only this owner's actions are allowed; the workflows need actions/*", page)
        if allowed == "selected" and not selected.get("github_owned_allowed"):
            return _by_hand("GitHub's own actions are not allowed; the workflows need them", page)
        patterns = selected.get("patterns_allowed") or ()
        has_aws = selected.get("verified_allowed") or any("aws-actions/" in each for each in patterns)
        if allowed == "selected" and self._wanted.role and not has_aws:
            return _by_hand("aws-actions/configure-aws-credentials@* is not allowed", page)
        return _ok(f"on, {allowed} actions allowed")

    def _check_workflow(self) -> SetupStep:
        path, branch = f"{self._base}/actions/workflows/{WORKFLOW}", self._repository.branch
        found = self._get(path, or_none=True)
        if found is None:
            return _by_hand(f"{WORKFLOW} is not on {branch} yet", Todo(HERE, f"git push origin {branch}"))
        state = str(found.get("state"))
        if state == "active":
            return _ok(f"{WORKFLOW} is on {branch} and active")
        by_person = state == "disabled_manually"
        return _change(
            f"{WORKFLOW}: {state} → active", SetupChange("PUT", f"{path}/enable"), overwrites=by_person
        )

    def _check_fork_requests(self) -> SetupStep:
        path = f"{self._base}/actions/permissions/fork-pr-contributor-approval"
        found = self._get(path).get("approval_policy")
        if found == STRICTEST:
            return _ok("outside contributors wait for an approval, each time")
        text = f"approval of outside pull requests: {found} → {STRICTEST}"
        return _change(text, SetupChange("PUT", path, {"approval_policy": STRICTEST}))

    def _check_variable(self, name: str, wanted: str | None) -> SetupStep:
        """Check one variable; `wanted` is None to keep the present value."""
        found = self._value(name)
        if found and wanted in (None, found):
            return _ok(f"{name} = {found}")
        if wanted is None:
            return _by_hand(f"{name} is not set")
        path, body = f"{self._base}/actions/variables", {"name": name, "value": wanted}
        # A variable with an empty value exists, so it is updated, not created.
        exists = name in self._read_variables()
        call = SetupChange("PATCH", f"{path}/{name}", body) if exists else SetupChange("POST", path, body)
        text = f"{name}: {found} → {wanted}" if found else f"{name} = {wanted}"
        return _change(text, call, overwrites=bool(found))

    def _check_labels(self) -> SetupStep:
        found, wanted, kind = self._value(LABELS), tuple(self._wanted.labels), self._wanted.kind
        if not (wanted or self._group or found or kind) and (place := self._other_place()):
            self._labels, self._kind = (), None
            return _optional(f"{place} says where to train; no runner of your own")
        try:
            given, is_named = wanted, bool(wanted or self._group)
            if found and not is_named:
                selector = parse_runner_labels(found, json_only=True)
                given, self._group = selector.labels, selector.group
            if not (given or self._group) and kind in (None, RunnerKind.SELF_HOSTED):
                given = DEFAULT_LABELS
            if not (given or self._group):
                return _by_hand(f"--runner {kind} needs the name of the machine: --labels NAME")
            self._kind = kind or runner_kind(given) or self._listed_kind(given)
            if self._group:  # a group finds its machines with fewer labels, or none
                self._labels, self._kind = given, self._kind or RunnerKind.OTHER
            else:
                self._labels = labels_for(self._kind, given) if self._kind else given
        except ConfigError as error:
            return _by_hand(f"{LABELS}: {error}; --labels self-hosted,gpu replaces it")
        if wanted and self._kind is None:
            names = shlex.quote(",".join(given))
            text = (
                f"no runner has {','.join(given)} yet, and each kind needs other labels. Say which it is "
                "with --runner: self-hosted (a machine that you register), scale-set "
                "(actions-runner-controller), hosted (GitHub's own) or other"
            )
            return _by_hand(text, Todo(HERE, f"{self._script} --labels {names} --runner KIND"))
        is_kept = found and not (is_named or kind)
        return self._check_variable(LABELS, None if is_kept else labels_text(self._labels, self._group))

    def _check_job_minutes(self) -> SetupStep:
        """Check the time limit of the training job, which GitHub's machines end after six hours."""
        found = self._value(JOB_MINUTES)
        is_short = found.isascii() and found.isdecimal() and int(found) <= int(HOSTED_MINUTES)
        return self._check_variable(JOB_MINUTES, found if is_short else HOSTED_MINUTES)

    def _check_deadline(self) -> SetupStep:
        """Check the deadline, which the plan refuses where it is too late for the job's time limit."""
        limit = self._value(JOB_MINUTES)
        minutes = int(limit if limit.isascii() and limit.isdecimal() else HOSTED_MINUTES)
        minutes = min(minutes, int(HOSTED_MINUTES))
        try:
            wanted = deadline_of(self._value(DEADLINE), minutes)
        except ConfigError:
            wanted = deadline_of("", minutes)
        return self._check_variable(DEADLINE, wanted)

    def _check_store(self) -> SetupStep:
        self._role = self._wanted.role or self._value(ROLE)
        self._role_since = str(self._read_variables().get(ROLE, {}).get("updated_at") or "")
        self._store = self._wanted.store or self._value(STORE)
        if self._store.startswith("file://") and self._kind in (RunnerKind.HOSTED, RunnerKind.SCALE_SET):
            text = f"{self._store} is lost with the machine, which ends with its job; name a bucket"
            return _by_hand(text, Todo(HERE, f"{self._script} --store s3://BUCKET/PREFIX"))
        step = self._check_variable(STORE, self._wanted.store or None)
        if step.verdict is SetupVerdict.YOU:
            where = "say where runs are stored: a folder of the machine or s3://bucket/prefix"
            todo = Todo(HERE, f"{self._script} --store file:///mnt/storage/store")
            return _by_hand(f"{step.text}; {where}", todo)
        return step

    def _check_environment(self, name: str) -> SetupStep:
        """Check that an environment exists and is limited to the default branch (`release`: version tags)."""
        path = f"{self._base}/environments/{name}"
        found = self._get(path, or_none=True)
        self._missing = self._missing - {name} if found else self._missing | {name}
        pattern, kind = ("v*", "tag") if name == "release" else (self._repository.branch, "branch")
        limit = f"tags {pattern}" if kind == "tag" else pattern
        add = SetupChange("POST", f"{path}/deployment-branch-policies", {"name": pattern, "type": kind})
        if found is None:
            return _change(f"new, limited to {limit}", _environment_put(path, {}), add)
        rule = found.get("deployment_branch_policy")
        if not (rule or {}).get("custom_branch_policies"):
            before = "protected branches" if rule else "every branch may use it"
            put = _environment_put(path, found)
            return _change(f"{before} → limited to {limit}", put, add, overwrites=bool(rule))
        policies = self._list(f"{path}/deployment-branch-policies", "branch_policies")
        others = [p for p in policies if (p.get("name"), p.get("type", "branch")) != (pattern, kind)]
        if len(others) == len(policies):
            return _change(f"{_names(others) or 'no branch'} may use it → {limit} too", add)
        if others:
            text = f"limited to {limit}, and {_names(others)} too: remove those that should not be allowed"
            remove = [self._call(SetupChange("DELETE", f"{add.path}/{each.get('id')}")) for each in others]
            return _by_hand(text, *remove, Todo(BROWSER, f"{self._repository.page}/settings/environments"))
        has_reviewer = name != "release" or _reviewers(found)
        return _ok(f"limited to {limit}{'' if has_reviewer else '; add a reviewer before you release'}")

    def _check_open_environment(self) -> SetupStep:
        """Check the environment of the jobs that report, which no reviewer and no branch rule may delay."""
        path = f"{self._base}/environments/{NOTIFY}"
        found = self._get(path, or_none=True)
        self._missing = self._missing - {NOTIFY} if found else self._missing | {NOTIFY}
        if found is None:
            return _change(
                "new, open to every branch", SetupChange("PUT", path, {"deployment_branch_policy": None})
            )
        page = Todo(BROWSER, f"{self._repository.page}/settings/environments")
        if _reviewers(found):
            return _by_hand("its reviewers delay the message of a failed run: remove them", page)
        if found.get("deployment_branch_policy"):
            return _by_hand("failed runs of the branches that it refuses are not reported", page)
        return _ok("open to every branch")

    def _check_secret(self, environment: str, name: str) -> SetupStep:
        """Check one wanted secret by its name, because GitHub never shows a value."""
        if environment in self._missing and not self._policy.dry_run:
            return _waits(f"{name} waits for the environment {environment}")
        part = f"environments/{environment}" if environment else "actions"
        items = self._list(f"{self._base}/{part}/secrets", "secrets", or_none=bool(environment))
        place = f"environment {environment}" if environment else "the repository"
        if name in [str(each["name"]) for each in items]:
            return _ok(f"{name} is in {place}; a value is never read")
        change = SecretChange(name, environment)
        if self._policy.can_ask(name):
            return _change(f"{name} in {place}", change)
        return _by_hand(f"{name} is not in {place}", self._call(change))

    def _check_runner(self) -> SetupStep:
        """Check that a runner with all labels is online."""
        wanted = self._wanted_labels
        if self._kind is RunnerKind.HOSTED and self._labels:
            machines, remark = self._hosted_machines(self._labels[0])
            if machines:
                return _ok(f"{machines[0].get('name')} is a machine of GitHub: {machines[0].get('status')}")
            return self._check_unlisted_runner(remark)
        if not self._repository.is_private and not self._wanted.allow_public:
            text = (
                "the repository is public, so pull requests from strangers could reach your machine: make it "
                "private, or accept that with --allow-public"
            )
            return _by_hand(text, Todo(BROWSER, f"{self._repository.page}/settings#danger-zone"))
        fitting, own, remark = self._fitting_runners(self._labels)
        self._is_registered = bool(fitting)
        if online := [each for each in fitting if each.get("status") == "online"]:
            versions = dict.fromkeys(str(each.get("version") or "") for each in online)
            # Without the releases only the oldest version that GitHub registers is compared.
            problems = [version_problem(version, (), now=0.0) for version in versions]
            old = "".join(f"; one has {problem}" for problem in problems if problem)
            return _ok(f"{_names(online)} online with {wanted}{old}")
        if fitting:
            look = "sudo systemctl status 'actions.runner.*'    # and restart, if it is stopped"
            return _by_hand(f"{_names(fitting)} has {wanted} and is offline", Todo(MACHINE, look))
        if self._group and not remark:
            owner = self._repository.name.split("/")[0]
            page = f"https://{self._repository.host}/organizations/{owner}/settings/actions/runner-groups"
            return _by_hand(f"no runner that this repository may use is in {wanted}", Todo(BROWSER, page))
        if self._group or self._kind is not RunnerKind.SELF_HOSTED:
            return self._check_unlisted_runner(remark)
        if not self._store:
            return _waits(
                "the command for a machine comes once the store is known, because it creates its folder"
            )
        self._is_command_shown = True
        todo = []
        for each in own[:3]:
            has = _labels_of(each)
            missing = [label for label in self._labels if label.casefold() not in has]
            remark += f"; {each.get('name')} lacks {', '.join(missing)}"
            add = SetupChange(
                "POST", f"{self._base}/actions/runners/{each.get('id')}/labels", {"labels": missing}
            )
            todo.append(self._call(add, f"if {each.get('name')} is the intended runner"))
        token = SetupChange("POST", f"{self._base}/actions/runners/registration-token")
        text = f"no runner with the labels {wanted} is registered{remark}"
        step = _by_hand(text, *todo, self._registration(token))
        return replace(step, changes=(token,) if self._policy.dry_run else ())

    def _check_unlisted_runner(self, remark: str) -> SetupStep:
        """Check by the newest runs that a machine which GitHub's API does not list takes jobs."""
        wanted, run = self._wanted_labels, self._read_runs().check_run
        if run:
            return _ok(f"run {run} had a machine with {wanted}")
        return _waits(
            f"no run has shown yet that a machine with {wanted} takes jobs{remark}; the first run will"
        )

    def _check_machine(self) -> SetupStep:
        """Check that the GPU machine can train, by what trainyard step environment found there."""
        found = self._read_runs()
        if found.checked == "success":
            return _ok(f"run {found.check_run} found driver, GPU and disk fit to train")
        if found.checked:
            look = f"gh run view {found.check_id} --repo {self._for_gh} --log-failed"
            return _by_hand(f"run {found.check_run} found the machine not fit to train", Todo(HERE, look))
        note = "only where the command above says that the driver is missing or too old"
        driver = [Todo(MACHINE, DRIVER_COMMAND, note)] if self._is_command_shown else []
        return _waits("the first run checks its driver, GPU and disk", *driver)

    def _check_aws_role(self) -> SetupStep:
        """Check that the role trusts this repository, by its policy or by a run that has assumed it."""
        repository = self._repository
        subject = self._get(f"{self._base}/actions/oidc/customization/sub", or_none=True) or {}
        run = self._read_runs().role_run
        if repository.host != GITHUB or subject.get("use_default") is False:
            if run:
                return _ok(f"was assumed by run {run}")
            is_other = repository.host != GITHUB
            why = "this host has an issuer of its own" if is_other else "the subjects are customised here"
            return _by_hand(f"{why}: write its trust policy by hand; a run that assumes it proves it")
        immutable = is_immutable(subject, repository.created)
        trusted = Trusted(
            self._role, repository.name, repository.owner_id, repository.repository_id, immutable
        )
        held, why_not = self._ask_aws(trusted.name)
        needed = trusted.subject.text(trusted.form)
        write, update = (Todo(HERE, line) for line in trusted.commands())
        if held is not None and trusted.fits(held):
            return _ok(f"{trusted.name} trusts {needed}")
        if held is not None:
            subjects = ", ".join(subjects_of(held)[:5]) or "no subject of GitHub"
            return _by_hand(f"{trusted.name} trusts {subjects} → {needed}", write, update)
        if run:
            return _ok(f"{trusted.name} was assumed by run {run}")
        if "NoSuchEntity" in why_not:
            text = f"AWS has no role {trusted.name}; its policy is in docs/runbooks/permissions.md#artifacts"
            return _by_hand(text, write, Todo(HERE, trusted.create_command()))
        text = (
            f"whether {trusted.name} trusts {needed} is not known: {why_not}. A run that assumes it proves it"
        )
        return _by_hand(text, write, update)

    def _check_watchdog(self) -> SetupStep:
        """Check that the watchdog is on; it is turned on only once a runner is registered."""
        found = self._value(WATCH)
        if found:
            return _ok(f"{WATCH} = {found}")
        is_registered = self._is_registered
        if self._kind is not RunnerKind.SELF_HOSTED:
            if self._labels or self._other_place() != CODEBUILD:
                return _optional(f"{WATCH} is not set: it judges registered machines, and these come and go")
            is_registered = True  # it watches CodeBuild's jobs
        if not self._wanted.watch:
            return _optional(f"{WATCH} is not set: nothing watches the runner")
        if not is_registered:
            return _waits(f"{WATCH} = on, once a runner is registered")
        return replace(self._check_variable(WATCH, "on"), text=f"{WATCH} = on")

    def _check_first_run(self) -> SetupStep:
        """Check that a training job was green on that runner."""
        found = self._read_runs()
        if found.proven_run:
            return _ok(f"run {found.proven_run} trained and was proven")
        needed = ["actions", "workflow", "runner labels", "store", "fork PRs"]
        needed += ["runner"] if self._kind is RunnerKind.SELF_HOSTED else []  # others may appear with a job
        finished = (SetupVerdict.OK, SetupVerdict.DONE, SetupVerdict.OPTIONAL)
        is_ready = all(self.verdicts[name] in finished for name in needed if name in self.verdicts)
        after = f"; the newest run is {found.last}" if found.last else ""
        line = f"gh workflow run {WORKFLOW} --repo {self._for_gh} -f config=configs/smoke.yaml"
        text = f"no training was proven yet{after}"
        if is_ready:
            return _by_hand(text, Todo(HERE, line))
        return _waits(text, Todo(HERE, line, "once a runner is online"))

    def _check_branch_rule(self) -> SetupStep:
        """Check that the default branch requires `ci`; optional, since a rule also blocks your pushes."""
        branch = self._repository.branch
        answer = self._ask("GET", f"{self._base}/rules/branches/{quote(branch, safe='')}?per_page=100")
        is_read = answer.status == 200 and isinstance(answer.content, list)
        checks = [
            check.get("context")
            for rule in (answer.content if is_read else ())
            if rule.get("type") == "required_status_checks"
            for check in (rule.get("parameters") or {}).get("required_status_checks", ())
        ]
        if "ci" in checks:
            return _ok(f"{branch} requires the check ci")
        why = f"{branch} does not require the check ci" if is_read else "could not be read: not on this plan?"
        return _optional(f"{why}; {self._repository.page}/settings/rules")

    @property
    def _wanted_labels(self) -> str:
        """Return the labels and the group in words."""
        group = [f"the group {self._group}"] if self._group else []
        return ", ".join([*self._labels, *group])

    @property
    def _for_gh(self) -> str:
        return repository_argument(self._repository.host, self._repository.name)

    def _call(self, change: SetupChange | SecretChange, note: str = "") -> Todo:
        return Todo(HERE, change.command_line(self._repository.host, self._repository.name), note)

    def _get(self, path: str, *, or_none: bool = False) -> Any:
        return request(self._ask, "GET", path, or_none=or_none)

    def _list(self, path: str, key: str, *, size: int = 100, or_none: bool = False) -> list[Any]:
        return list_items(self._ask, path, key, size=size, or_none=or_none)

    def _read_variables(self) -> dict[str, dict[str, Any]]:
        """Return the variables of the repository, by name; read again after every change."""
        if self._variables is None:
            items = self._list(f"{self._base}/actions/variables", "variables", size=30)
            self._variables = {str(item["name"]): item for item in items}
        return self._variables

    def _value(self, name: str) -> str:
        return str(self._read_variables().get(name, {}).get("value") or "")

    def _other_place(self) -> str:
        """Return the variable that names CodeBuild or a cluster; empty where neither is, or is to be, set."""
        known = {**self._read_variables(), **self._wanted.variables}
        return next((name for name in (CODEBUILD, CLUSTER) if known.get(name)), "")

    def _listed_kind(self, labels: Sequence[str]) -> RunnerKind | None:
        """Return the kind of machine by what GitHub lists; None where it lists none with these labels."""
        fitting, _, _ = self._fitting_runners(labels)
        if fitting:
            if len(labels) == 1 and is_pod_of_scale_set(str(fitting[0].get("name")), labels[0]):
                return RunnerKind.SCALE_SET
            is_registered = is_self_hosted(list(_labels_of(fitting[0])))
            return RunnerKind.SELF_HOSTED if is_registered else RunnerKind.OTHER
        return RunnerKind.HOSTED if len(labels) == 1 and self._hosted_machines(labels[0])[0] else None

    def _fitting_runners(self, labels: Sequence[str]) -> tuple[list[Json], list[Json], str]:
        """Return the runners with all labels, all runners of the repository, and a remark.

        Where none of the repository's fits, those of the organisation that the repository may use are
        searched; the remark says so if they may not be listed.
        """
        own = self._list(f"{self._base}/actions/runners", "runners")
        fitting = [] if self._group else _with_labels(own, labels)  # those of a repository are in no group
        if fitting or not self._repository.is_of_organisation:
            return fitting, own, ""
        owner, name = self._repository.name.split("/")
        base = f"orgs/{owner}/actions/runner-groups"
        try:
            groups = self._list(f"{base}?visible_to_repository={quote(name)}", "runner_groups")
            if self._group:
                groups = [
                    each for each in groups if str(each.get("name")).casefold() == self._group.casefold()
                ]
            found = [
                each for group in groups for each in self._list(f"{base}/{group['id']}/runners", "runners")
            ]
        except RefusedError as error:
            why = f"; the organisation's runners were not listed ({error.message})"
            return [], own, f"{why}: it takes the scope admin:org: gh auth refresh --scopes admin:org"
        return _with_labels(found, labels), own, ""

    def _hosted_machines(self, name: str) -> tuple[list[Json], str]:
        """Return the organisation's machines at GitHub of this name, and a remark on why none were listed."""
        if not self._repository.is_of_organisation:
            return [], ""
        path = f"orgs/{self._repository.name.split('/')[0]}/actions/hosted-runners"
        try:
            found = self._list(path, "runners")
        except RefusedError as error:
            why = f"; the organisation's were not listed ({error.message}): it takes manage_runners:org"
            return [], f"{why}: gh auth refresh --scopes manage_runners:org"
        return [each for each in found if str(each.get("name")).casefold() == name.casefold()], ""

    def _registration(self, for_token: SetupChange) -> Todo:
        """Return the command that makes a machine a runner; a dry run requests no token."""
        downloads = {
            str(each["architecture"]): (str(each["download_url"]), str(each["sha256_checksum"]))
            for each in self._get(f"{self._base}/actions/runners/downloads")
            if each.get("os") == "linux" and each.get("sha256_checksum")
        }
        token, note = "TOKEN", "a run without --dry-run inserts a token that is valid for an hour"
        if not self._policy.dry_run:
            made = request(self._ask, for_token.method, for_token.path)
            token, ends = str(made["token"]), _in_utc(str(made.get("expires_at") or ""))
            note = f"the token in it is for one hour{ends}; run this again for a new one"
        folders = [unquote(self._store.removeprefix("file://"))] if self._store.startswith("file://") else []
        if runs := self._wanted.variables.get(RUNS_DIRECTORY):
            folders.append(runs)
        registration = Registration(self._repository.page, self._labels, downloads, token, folders)
        return Todo(MACHINE, runner_command(registration), note)

    def _read_runs(self) -> Trained:
        """Return the results of the newest runs, which are read once.

        A run that only showed its plan is green too, so only the training job counts. A run from before the
        role's variable was set may have assumed another role.
        """
        if self._trained is not None:
            return self._trained
        base, branch = f"{self._base}/actions", quote(self._repository.branch, safe="")
        path = f"{base}/workflows/{WORKFLOW}/runs?branch={branch}&per_page={NEWEST_RUNS}"
        runs = (self._get(path, or_none=True) or {}).get("workflow_runs") or []
        checked = check_run = check_id = proven = assumed = ""
        for run in runs:
            number = str(run.get("run_number"))
            for job in self._list(f"{base}/runs/{run['id']}/jobs", "jobs"):
                if job.get("name") != TRAIN_JOB:
                    continue
                ends = {str(step.get("name")): step.get("conclusion") for step in job.get("steps") or ()}
                if str(run.get("created_at")) > self._role_since and ends.get(ROLE_STEP) == "success":
                    assumed = assumed or number
                if not {*map(str.casefold, self._labels)} <= {
                    str(x).casefold() for x in job.get("labels") or ()
                }:
                    continue
                if not checked and ends.get(CHECK_STEP) in ("success", "failure"):
                    checked, check_run, check_id = str(ends[CHECK_STEP]), number, str(run.get("id"))
                proven = proven or (number if job.get("conclusion") == "success" else "")
        last = next((f"{r.get('run_number')}: {r.get('conclusion') or r.get('status')}" for r in runs), "")
        self._trained = Trained(checked, check_run, check_id, proven, last, assumed)
        return self._trained


def environments_missing(name: str, message: str, repository: Repository) -> SetupStep:
    """Return the step for an environment that GitHub's plan does not offer in a private repository."""
    text = (
        f"{message.rstrip('.')}; in a private repository environments need GitHub Pro, Team or Enterprise. "
        "Without them any branch may use the secrets: --no-environments accepts that"
    )
    plans = Todo(BROWSER, f"https://{repository.host}/settings/billing/plans")
    return replace(_by_hand(text, plans), name=name)


# The table names the steps.
def _ok(text: str) -> SetupStep:
    return SetupStep("", SetupVerdict.OK, text)


def _optional(text: str) -> SetupStep:
    return SetupStep("", SetupVerdict.OPTIONAL, text)


def _waits(text: str, *todo: Todo) -> SetupStep:
    return SetupStep("", SetupVerdict.WAITS, text, todo=todo)


def _by_hand(text: str, *todo: Todo) -> SetupStep:
    return SetupStep("", SetupVerdict.YOU, text, todo=todo)


def _change(text: str, *changes: SetupChange | SecretChange, overwrites: bool = False) -> SetupStep:
    return SetupStep("", SetupVerdict.CHANGE, text, changes, overwrites)


def _environment_put(path: str, found: Json) -> SetupChange:
    """Return the call that limits an environment and keeps its other settings.

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
    if reviewers := _reviewers(found):
        body["reviewers"] = reviewers
    return SetupChange("PUT", path, body)


def _reviewers(found: Json) -> list[dict[str, Any]]:
    return [
        {"type": each.get("type"), "id": (each.get("reviewer") or {}).get("id")}
        for rule in found.get("protection_rules") or ()
        if rule.get("type") == "required_reviewers"
        for each in rule.get("reviewers") or ()
    ]


def _labels_of(runner: Json) -> set[str]:
    """Return the labels of a runner in lower case, because GitHub ignores their case."""
    return {str(label.get("name")).casefold() for label in runner.get("labels", ())}


def _with_labels(runners: Sequence[Json], labels: Sequence[str]) -> list[Json]:
    wanted = {label.casefold() for label in labels}
    return [each for each in runners if wanted <= _labels_of(each)]


def _names(items: Sequence[Json]) -> str:
    return ", ".join([str(each.get("name")) for each in items][:5])


def _in_utc(time: str) -> str:
    """Return `, until 11:12 UTC`; empty when GitHub's text is not a time."""
    try:
        return f", until {datetime.fromisoformat(time).astimezone(UTC):%H:%M} UTC"
    except ValueError:
        return ""
