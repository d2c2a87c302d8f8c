"""The set-up of a repository on GitHub: one table, each row with how to read, check and set a setting.

    row ──check──> ok | you | waits
         └──> change ──> check again ──> done | refused

`Setup.rows` is the table. The function of a row reads GitHub and returns the state: correct, a person's task,
or a change with the calls that make it. It is called again after its change, so that a row is done only when
GitHub shows it. A refused row does not stop the others; when GitHub cannot be reached, the remaining rows are
skipped. Settings that somebody chose are kept, or shown before they are replaced; nothing is removed. The
functions that query GitHub and the person are passed in.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from trainyard.errors import ConfigError, ServiceError, ServiceTroubleError
from trainyard.github.repository import GITHUB, RefusedError, Repository, list_items, request
from trainyard.github.runner_command import Registration, runner_command
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
from trainyard.github.trust_policy import WORKFLOW, Form, is_immutable, trust_commands
from trainyard.github.variables import (
    CLUSTER,
    CODEBUILD,
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
    RunnerSelector,
    labels_text,
    runner_kind,
    selector_in_json,
)

if TYPE_CHECKING:
    from trainyard.github.repository import Ask

CHECK_STEP, TRAIN_JOB = "Check", "Train and prove"
"""Names in training_ci.yml; a test checks that they are equal."""
NEWEST_RUNS = 10
SCRIPT = "PYTHONPATH=src python3 -m trainyard init github"
STRICTEST = "all_external_contributors"
_FINISHED = (SetupVerdict.OK, SetupVerdict.DONE, SetupVerdict.OPTIONAL)
_FREE_PLAN = (
    "; in a private repository environments need GitHub Pro, Team or Enterprise. Without them any branch may "
    "use the secrets: --no-environments accepts that"
)
Json = Mapping[str, Any]
Change = SetupChange | SecretChange


@dataclass(frozen=True)
class WantedSetup:
    """The wanted settings; an empty value keeps the present one."""

    labels: Sequence[str] = ()
    group: str = ""
    """The organisation's runner group, used together with the labels."""
    kind: RunnerKind | None = None
    """The kind of machine that the labels name; None for what the labels show."""
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
    """The newest runs of the training workflow on runners with the labels, by their numbers."""

    machine: str = ""
    """A run whose training job had a machine."""
    proven: str = ""
    """A run whose training job was green."""
    with_role: str = ""
    """The same, of a run since the variable with the role was set."""
    last: str = ""
    """Number and result of the newest run of all."""
    last_id: str = ""
    """Its id, for `gh run view`."""


class Setup:
    """The set-up of one repository; a later row may use what an earlier one found."""

    def __init__(self, ask: "Ask", repository: Repository, wanted: WantedSetup, policy: ChangePolicy) -> None:
        self._ask, self._repository, self._base = ask, repository, repository.base
        self._wanted, self._policy = wanted, policy
        self._script = f"{SCRIPT} --repository {self._for_gh}"
        self._selector = RunnerSelector(tuple(wanted.labels), wanted.group)
        self._kind: RunnerKind | None = wanted.kind
        self._store, self._role, self._is_registered = wanted.store, wanted.role, False
        self._variables: dict[str, dict[str, Any]] | None = None
        self._trained: Trained | None = None
        self._verdicts: dict[str, SetupVerdict] = {}
        self._outage = ""
        """Why GitHub could not be reached; empty while it can be."""

    def steps(self) -> Iterator[SetupStep]:
        """Yield each step as soon as it is finished."""
        for name, check in self.rows():
            step = self._finish(name, check)
            self._verdicts[name] = step.verdict
            yield step

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
        if self._kind is not None:
            yield "runner", self._check_runner
        if self._role:
            yield "aws role", self._check_aws_role
        yield "watchdog", self._check_watchdog
        yield "first green", self._check_first_run

    def _finish(self, name: str, check: Callable[[], SetupStep]) -> SetupStep:
        """Return a step after its changes were made and read back, or with the reason why they were not."""
        if self._outage:
            return SetupStep(name, SetupVerdict.UNREACHED, "run it again: finished steps are kept")
        try:
            step = replace(check(), name=name)
            return self._change(step, check) if step.verdict is SetupVerdict.CHANGE else step
        except ServiceTroubleError as error:
            self._outage = str(error)
            return SetupStep(name, SetupVerdict.UNREACHED, self._outage)
        except RefusedError as error:
            return self._refusal(name, str(error))

    def _change(self, step: SetupStep, check: Callable[[], SetupStep]) -> SetupStep:
        if self._policy.dry_run:
            return replace(step, verdict=SetupVerdict.WOULD)
        if step.overwrites and not self._policy.confirm(step):
            return replace(step, verdict=SetupVerdict.YOU, text=f"{step.text}: not changed; --yes changes it")
        refusal = self._make(step.changes)
        again = replace(check(), name=step.name)
        if again.verdict is not SetupVerdict.CHANGE:
            return replace(again, verdict=SetupVerdict.DONE) if again.verdict is SetupVerdict.OK else again
        if isinstance(refusal, ServiceTroubleError):
            raise refusal
        reason = str(refusal) if refusal else "GitHub accepted the change but does not show it"
        return self._refusal(step.name, f"{step.text}: {reason}")

    def _make(self, changes: Sequence[Change]) -> ServiceError | None:
        """Make the changes in their order and stop at the first refusal, which is returned."""
        self._variables = None
        for change in changes:
            try:
                if isinstance(change, SecretChange):
                    self._policy.set_secret(change)
                else:
                    request(self._ask, change.method, change.path, change.body)
            except ServiceError as error:
                return error
        return None

    def _refusal(self, name: str, reason: str) -> SetupStep:
        is_of_plan = name.startswith("env ") and self._repository.is_private and "accessible" not in reason
        plan = _FREE_PLAN if is_of_plan else ""
        return SetupStep(name, SetupVerdict.REFUSED, f"{reason.rstrip('.')}{plan}")

    def _check_repository(self) -> SetupStep:
        kind = "private" if self._repository.is_private else "public"
        return _ok(f"{kind}, no fork, not archived; you administer it")  # `get_repository` refuses others

    def _check_actions(self) -> SetupStep:
        path = f"{self._base}/actions/permissions"
        found = self._get(path)
        allowed = found.get("allowed_actions") or "all"
        if not found.get("enabled"):
            body = {"enabled": True, "allowed_actions": allowed}
            return _change("Actions: off → on", SetupChange("PUT", path, body), overwrites=True)
        if allowed == "local_only":
            page = Todo(BROWSER, f"{self._repository.page}/settings/actions")
            return _by_hand("only this owner's actions are allowed; the workflows need actions/*", page)
        return _ok(f"on, {allowed} actions allowed{'; actions/* must be' if allowed == 'selected' else ''}")

    def _check_workflow(self) -> SetupStep:
        path, branch = f"{self._base}/actions/workflows/{WORKFLOW}", self._repository.branch
        found = self._get(path, or_none=True)
        if found is None:
            return _by_hand(f"{WORKFLOW} is not on {branch} yet", Todo(HERE, f"git push origin {branch}"))
        state = str(found.get("state"))
        if state == "active":
            return _ok(f"{WORKFLOW} is on {branch} and active")
        change, by_person = SetupChange("PUT", f"{path}/enable"), state == "disabled_manually"
        return _change(f"{WORKFLOW}: {state} → active", change, overwrites=by_person)

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
        found, is_wanted = self._value(LABELS), bool(self._wanted.labels or self._wanted.group)
        if not is_wanted and not found and (place := self._other_place()):
            return _optional(f"{place} says where to train; no runner of your own")
        if not is_wanted:
            self._selector, self._kind = RunnerSelector(DEFAULT_LABELS), RunnerKind.SELF_HOSTED
            try:
                self._selector = selector_in_json(found) if found else self._selector
            except ConfigError as error:
                return _by_hand(f"{LABELS}: {error}; --labels gpu replaces it")
        self._kind = self._wanted.kind or runner_kind(self._selector)
        return self._check_variable(LABELS, None if found and not is_wanted else labels_text(self._selector))

    def _check_job_minutes(self) -> SetupStep:
        """Check the time limit of the training job, which GitHub's machines end after six hours."""
        found = self._value(JOB_MINUTES)
        is_short = found.isascii() and found.isdecimal() and int(found) <= int(HOSTED_MINUTES)
        return self._check_variable(JOB_MINUTES, found if is_short else HOSTED_MINUTES)

    def _check_store(self) -> SetupStep:
        self._role = self._wanted.role or self._value(ROLE)
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
            return _by_hand(text, self._environments_page)
        has_reviewer = name != "release" or _reviewers(found)
        return _ok(f"limited to {limit}{'' if has_reviewer else '; add a reviewer before you release'}")

    def _check_open_environment(self) -> SetupStep:
        """Check the environment of the jobs that report, which no reviewer and no branch rule may delay."""
        path = f"{self._base}/environments/{NOTIFY}"
        found = self._get(path, or_none=True)
        if found is None:
            put = SetupChange("PUT", path, {"deployment_branch_policy": None})
            return _change("new, open to every branch", put)
        if _reviewers(found) or found.get("deployment_branch_policy"):
            text = "reviewers or a branch limit delay the message of a failed run: remove them"
            return _by_hand(text, self._environments_page)
        return _ok("open to every branch")

    def _check_secret(self, environment: str, name: str) -> SetupStep:
        """Check one wanted secret by its name, because GitHub never shows a value."""
        place = f"environments/{environment}" if environment else "actions"
        if environment and self._get(f"{self._base}/{place}", or_none=True) is None:
            if not self._policy.dry_run:
                return _waits(f"{name} waits for the environment {environment}")
            items = []
        else:
            items = self._list(f"{self._base}/{place}/secrets", "secrets")
        where = f"environment {environment}" if environment else "the repository"
        if name in [str(each["name"]) for each in items]:
            return _ok(f"{name} is in {where}; a value is never read")
        change = SecretChange(name, environment)
        if self._policy.can_ask(name):
            return _change(f"{name} in {where}", change)
        command = change.command_line(self._repository.host, self._repository.name)
        return _by_hand(f"{name} is not in {where}", Todo(HERE, command))

    def _check_runner(self) -> SetupStep:
        """Check that a runner with all labels is online, or had a job: GitHub does not list every kind."""
        labels, group = self._selector.labels, self._selector.group
        wanted = ", ".join([*labels, *([f"the group {group}"] if group else [])])
        is_own = self._kind is RunnerKind.SELF_HOSTED
        if is_own and not self._repository.is_private and not self._wanted.allow_public:
            text = (
                "the repository is public, so pull requests from strangers could reach your machine: make it "
                "private, or accept that with --allow-public"
            )
            return _by_hand(text, Todo(BROWSER, f"{self._repository.page}/settings#danger-zone"))
        listed = self._list(f"{self._base}/actions/runners", "runners") if is_own else []
        fitting = [each for each in listed if {*map(str.casefold, labels)} <= _labels_of(each)]
        is_unlisted = not is_own or self._repository.is_of_organisation
        run = self._read_runs().machine if is_unlisted and not fitting else ""
        self._is_registered = bool(fitting or run)
        if online := [each for each in fitting if each.get("status") == "online"]:
            versions = dict.fromkeys(str(each.get("version") or "") for each in online)
            # Without the releases only the oldest version that GitHub registers is compared.
            problems = [version_problem(version, (), now=0.0) for version in versions]
            old = "".join(f"; one has {problem}" for problem in problems if problem)
            return _ok(f"{_names(online)} online with {wanted}{old}")
        if fitting:
            look = "sudo systemctl status 'actions.runner.*'    # and restart, if it is stopped"
            return _by_hand(f"{_names(fitting)} has {wanted} and is offline", Todo(MACHINE, look))
        if run:
            return _ok(f"run {run} had a machine with {wanted}")
        if not is_own:
            return _waits(f"no run has shown yet that a machine with {wanted} takes jobs; the first run will")
        if not self._store:
            return _waits("the command for a machine comes once the store, whose folder it makes, is known")
        token = SetupChange("POST", f"{self._base}/actions/runners/registration-token")
        text = f"no runner with the labels {wanted} is registered; one of the organisation is not listed"
        text = text if self._repository.is_of_organisation else text.partition(";")[0]
        step = _by_hand(text, self._registration(token))
        return replace(step, changes=(token,) if self._policy.dry_run else ())

    def _check_aws_role(self) -> SetupStep:
        """Check that the role trusts this repository, by a run that was proven since the role is set."""
        repository = self._repository
        if run := self._read_runs().with_role:
            return _ok(f"run {run}, which assumed it, was proven")
        subject = self._get(f"{self._base}/actions/oidc/customization/sub", or_none=True) or {}
        if repository.host != GITHUB or subject.get("use_default") is False:
            text = "GitHub's subjects are not the default here: write its trust policy by hand"
            return _by_hand(f"{text}; a run that is proven shows that it is right")
        form = Form.IMMUTABLE if is_immutable(subject, repository.created) else Form.NAMES
        write, create, update = trust_commands(
            self._role,
            repository.name,
            form,
            owner_id=repository.owner_id,
            repository_id=repository.repository_id,
        )
        return _by_hand(
            f"no run has shown yet that {self._role.rpartition('/')[2]} trusts this repository's jobs",
            Todo(HERE, write),
            Todo(HERE, update, f"if there is no such role: {create}"),
        )

    def _check_watchdog(self) -> SetupStep:
        """Check that the watchdog is on; it is turned on only once a runner is registered."""
        found, is_codebuild = self._value(WATCH), self._other_place() == CODEBUILD
        if found:
            return _ok(f"{WATCH} = {found}")
        if not self._wanted.watch:
            return _optional(f"{WATCH} is not set: nothing watches the runner")
        if self._kind is not RunnerKind.SELF_HOSTED and not is_codebuild:
            return _optional(f"{WATCH} is not set: it judges registered machines, and these come and go")
        if not self._is_registered and not is_codebuild:
            return _waits(f"{WATCH} = on, once a runner is registered")
        return self._check_variable(WATCH, "on")

    def _check_first_run(self) -> SetupStep:
        """Check that a training job was green on that runner."""
        found = self._read_runs()
        if found.proven:
            return _ok(f"run {found.proven} trained and was proven")
        needed = ["actions", "workflow", "runner labels", "store", "fork PRs"]
        needed += ["runner"] if self._kind is RunnerKind.SELF_HOSTED else []  # others may appear with a job
        is_ready = all(self._verdicts[name] in _FINISHED for name in needed if name in self._verdicts)
        line = f"gh workflow run {WORKFLOW} --repo {self._for_gh} -f config=configs/smoke.yaml"
        text = "no training was proven yet"
        if not is_ready:
            return _waits(text, Todo(HERE, line, "once a runner is online"))
        if not found.last:
            return _by_hand(text, Todo(HERE, line))
        look = f"gh run view {found.last_id} --repo {self._for_gh} --log-failed"
        return _by_hand(f"{text}; the newest run is {found.last}", Todo(HERE, look), Todo(HERE, line))

    @property
    def _for_gh(self) -> str:
        return repository_argument(self._repository.host, self._repository.name)

    @property
    def _environments_page(self) -> Todo:
        return Todo(BROWSER, f"{self._repository.page}/settings/environments")

    def _get(self, path: str, *, or_none: bool = False) -> Any:
        return request(self._ask, "GET", path, or_none=or_none)

    def _list(self, path: str, key: str, *, size: int = 100) -> list[Any]:
        return list_items(self._ask, path, key, size=size)

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
            ends = datetime.fromisoformat(made["expires_at"]).astimezone(UTC)
            token = str(made["token"])
            note = f"the token in it is for one hour, until {ends:%H:%M} UTC; run this again for a new one"
        folders = [unquote(self._store.removeprefix("file://"))] if self._store.startswith("file://") else []
        if runs := self._wanted.variables.get(RUNS_DIRECTORY):
            folders.append(runs)
        registration = Registration(self._repository.page, self._selector.labels, downloads, token, folders)
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
        role_since = str(self._read_variables().get(ROLE, {}).get("updated_at") or "")
        machine = proven = with_role = ""
        for run in runs:
            number = str(run.get("run_number"))
            for job in self._list(f"{base}/runs/{run['id']}/jobs", "jobs"):
                has_labels = {*map(str.casefold, self._selector.labels)} <= {
                    str(label).casefold() for label in job.get("labels") or ()
                }
                if job.get("name") != TRAIN_JOB or not has_labels:
                    continue
                ends = {str(step.get("name")): step.get("conclusion") for step in job.get("steps") or ()}
                if ends.get(CHECK_STEP) in ("success", "failure"):
                    machine = machine or number
                if job.get("conclusion") == "success":
                    proven = proven or number
                    with_role = with_role or (number if str(run.get("created_at")) > role_since else "")
        newest = runs[0] if runs else {}
        last = f"{newest['run_number']}: {newest.get('conclusion') or newest.get('status')}" if runs else ""
        self._trained = Trained(machine, proven, with_role, last, str(newest.get("id")))
        return self._trained


# The table names the steps.
def _ok(text: str) -> SetupStep:
    return SetupStep("", SetupVerdict.OK, text)


def _optional(text: str) -> SetupStep:
    return SetupStep("", SetupVerdict.OPTIONAL, text)


def _waits(text: str, *todo: Todo) -> SetupStep:
    return SetupStep("", SetupVerdict.WAITS, text, todo=todo)


def _by_hand(text: str, *todo: Todo) -> SetupStep:
    return SetupStep("", SetupVerdict.YOU, text, todo=todo)


def _change(text: str, *changes: Change, overwrites: bool = False) -> SetupStep:
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


def _names(items: Sequence[Json]) -> str:
    return ", ".join([str(each.get("name")) for each in items][:5])
