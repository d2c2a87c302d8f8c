"""The set-up of a repository on GitHub: a table of settings, each with its path in the API and its value.

    row ──read──> ok | you | waits
         └──> change ──> read again ──> done | refused

`Setup.rows` is the table. A row is read again after its change, so that it is done only when GitHub shows
it. A refused row does not stop the others; when GitHub cannot be reached, the remaining rows are skipped.
Settings that somebody chose are kept, or shown before they are replaced; nothing is removed. What GitHub's
console shows and its API does not, such as the runners of an organisation, is in docs/runner.md.
"""

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from trainyard.errors import ConfigError, ServiceError, ServiceTroubleError
from trainyard.github.repository import GITHUB, SCHEDULE, RefusedError, Repository, list_items, request
from trainyard.github.runner_command import Registration, runner_command
from trainyard.github.runner_version import version_problem
from trainyard.github.setup_step import (
    BROWSER,
    FINISHED,
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

TRAIN_JOB = "Train and prove"
"""A name in training_ci.yml; a test checks that they are equal."""
LINEAGE = "trainyard-lineage-*"
"""The tags from which segments run whose branch has a newer workflow file."""
SCRIPT = "PYTHONPATH=src python3 -m trainyard init github"
_FREE_PLAN = (
    "; in a private repository environments need GitHub Pro, Team or Enterprise. Without them any branch may "
    "use the secrets: --no-environments accepts that"
)
Json = Mapping[str, Any]


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
class Setting:
    """One value that GitHub shows at a path, and the call that sets it."""

    path: str
    """Below `repos/OWNER/NAME/`; "not found" means that there is no value."""
    key: str
    """Of the answer."""
    wanted: Any
    label: str
    """How the value is named: `LABEL: found → wanted`."""
    change: SetupChange
    create: SetupChange | None = None
    """Instead of `change` where nothing is at the path."""
    is_chosen: bool = True
    """A present value was chosen by somebody, who is asked before it is replaced."""


def repository_settings(repository: Repository) -> dict[str, Setting]:
    """Return the settings of the repository itself, by the name of their row."""
    actions = f"{repository.base}/actions"
    enabled = SetupChange("PUT", f"{actions}/permissions", {"enabled": True})
    active = SetupChange("PUT", f"{actions}/workflows/{WORKFLOW}/enable")
    found = {
        "actions": Setting("actions/permissions", "enabled", True, "Actions enabled", enabled),
        "workflow": Setting(f"actions/workflows/{WORKFLOW}", "state", "active", WORKFLOW, active),
    }
    if not repository.is_private:
        path, key = "permissions/fork-pr-contributor-approval", "approval_policy"
        value, label = "all_external_contributors", "approval of outside pull requests"
        change = SetupChange("PUT", f"{actions}/{path}", {key: value})
        found["fork PRs"] = Setting(f"actions/{path}", key, value, label, change, is_chosen=False)
    return found


class Setup:
    """The set-up of one repository; a later row may use what an earlier one found."""

    def __init__(self, ask: "Ask", repository: Repository, wanted: WantedSetup, policy: ChangePolicy) -> None:
        self._ask, self._repository, self._wanted, self._policy = ask, repository, wanted, policy
        self._for_gh = repository_argument(repository.host, repository.name)
        self._selector = RunnerSelector(tuple(wanted.labels), wanted.group)
        self._kind: RunnerKind | None = wanted.kind
        self._store, self._role, self._is_registered = wanted.store, wanted.role, False
        self._places: list[str] = []
        """The variables that name CodeBuild or a cluster."""
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
        kind = "private" if self._repository.is_private else "public"
        # `get_repository` refuses others.
        yield "repository", lambda: _ok(f"{kind}, no fork, not archived; you administer it")
        for name, setting in repository_settings(self._repository).items():
            yield name, partial(self._check_setting, setting)
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
            yield f"env {NOTIFY}", partial(self._check_environment, NOTIFY)
        for place, name in wanted.secrets:
            yield "secret", partial(self._check_secret, place if wanted.environments else "", name)
        if self._kind is not None:
            yield "runner", self._check_runner
        if self._role:
            yield "aws role", self._check_aws_role
        if wanted.watch and (self._kind is RunnerKind.SELF_HOSTED or CODEBUILD in self._places):
            yield "watchdog", self._check_watchdog
            yield "poll runners", partial(self._check_schedule, "watch_runners.yml")
        if CLUSTER in self._places:
            yield "poll EKS", partial(self._check_schedule, "watch_eks.yml")
        yield "first green", self._check_first_run

    # The engine: read, change, read again.

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
        refusal: ServiceError | None = None
        try:
            for change in step.changes:
                if isinstance(change, SecretChange):
                    self._policy.set_secret(change)
                else:
                    request(self._ask, change.method, change.path, change.body)
        except ServiceError as error:
            refusal = error
        again = replace(check(), name=step.name)
        if again.verdict is not SetupVerdict.CHANGE:
            return replace(again, verdict=SetupVerdict.DONE) if again.verdict is SetupVerdict.OK else again
        if isinstance(refusal, ServiceTroubleError):
            raise refusal
        reason = str(refusal) if refusal else "GitHub accepted the change but does not show it"
        return self._refusal(step.name, f"{step.text}: {reason}")

    def _refusal(self, name: str, reason: str) -> SetupStep:
        is_of_plan = name.startswith("env ") and self._repository.is_private and "accessible" not in reason
        plan = _FREE_PLAN if is_of_plan else ""
        return SetupStep(name, SetupVerdict.REFUSED, f"{reason.rstrip('.')}{plan}")

    def _check_setting(self, setting: Setting) -> SetupStep:
        """Compare one value with the wanted one, or with any value where None is wanted."""
        answer = self._get(setting.path, or_none=True)
        found = None if answer is None else answer.get(setting.key)
        is_set = found not in (None, "")
        if is_set and setting.wanted in (None, found):
            return _ok(f"{setting.label} = {found}")
        if answer is None and setting.create is None:
            branch = self._repository.branch
            return _by_hand(
                f"{setting.label} is not on {branch} yet", Todo(HERE, f"git push origin {branch}")
            )
        if setting.wanted is None:
            return _by_hand(f"{setting.label} is not set")
        before = f": {found} →" if is_set else " ="
        call = setting.create if answer is None and setting.create else setting.change
        step = SetupStep("", SetupVerdict.CHANGE, f"{setting.label}{before} {setting.wanted}", (call,))
        return replace(step, overwrites=is_set and setting.is_chosen)

    def _check_variable(self, name: str, wanted: str | None) -> SetupStep:
        """Check one variable; `wanted` is None to keep the present value."""
        folder, body = "actions/variables", {"name": name, "value": wanted}
        patch = SetupChange("PATCH", f"{self._repository.base}/{folder}/{name}", body)
        post = SetupChange("POST", f"{self._repository.base}/{folder}", body)
        return self._check_setting(Setting(f"{folder}/{name}", "value", wanted, name, patch, post))

    # The rows that need more than one value.

    def _check_labels(self) -> SetupStep:
        found, is_wanted = self._value(LABELS), bool(self._wanted.labels or self._wanted.group)
        known = self._wanted.variables
        self._places = [name for name in (CODEBUILD, CLUSTER) if known.get(name) or self._value(name)]
        if not is_wanted and not found and self._places:
            return _ok(f"{self._places[0]} says where to train; no runner of your own")
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
        script = f"{SCRIPT} --repository {self._for_gh}"
        if self._store.startswith("file://") and self._kind in (RunnerKind.HOSTED, RunnerKind.SCALE_SET):
            text = f"{self._store} is lost with the machine, which ends with its job; name a bucket"
            return _by_hand(text, Todo(HERE, f"{script} --store s3://BUCKET/PREFIX"))
        if not self._store:
            text = f"{STORE} is not set; say where runs are stored: a folder of the machine or a bucket"
            return _by_hand(text, Todo(HERE, f"{script} --store file:///mnt/storage/store"))
        return self._check_variable(STORE, self._wanted.store or None)

    def _check_environment(self, name: str) -> SetupStep:
        """Check that an environment exists, with its limit; that of the reports may be delayed by nothing."""
        base, path = self._repository.base, f"environments/{name}"
        page = Todo(BROWSER, f"{self._repository.page}/settings/environments")
        found = self._get(path, or_none=True)
        limit = (found or {}).get("deployment_branch_policy")
        rules = [
            each for each in (found or {}).get("protection_rules") or () if each["type"] != "branch_policy"
        ]
        if name == NOTIFY:
            if rules or limit:
                text = "reviewers or a branch limit delay the message of a failed run: remove them"
                return _by_hand(text, page)
            put = SetupChange("PUT", f"{base}/{path}", {"deployment_branch_policy": None})
            return _ok("open to every branch") if found else _change("new, open to every branch", put)
        wanted = {("v*", "tag")} if name == "release" else {(self._repository.branch, "branch")}
        wanted |= {(LINEAGE, "tag")} if name in ("training", "eks") else set()
        text = f"limited to {', '.join(sorted(each for each, _ in wanted))}"
        is_limited = bool((limit or {}).get("custom_branch_policies"))
        if rules and not is_limited:
            return _by_hand(f"it has rules of yours and no such limit: add one, {text}", page)
        policies = f"{base}/{path}/deployment-branch-policies"
        listed = list_items(self._ask, policies, "branch_policies") if is_limited else []
        present = {(str(each["name"]), str(each.get("type", "branch"))) for each in listed}
        adds = [
            SetupChange("POST", policies, {"name": pattern, "type": kind})
            for pattern, kind in sorted(wanted - present)
        ]
        if not is_limited:
            body = {"deployment_branch_policy": {"protected_branches": False, "custom_branch_policies": True}}
            before = "new" if found is None else "protected branches →" if limit else "every branch →"
            put = SetupChange("PUT", f"{base}/{path}", body)
            return _change(f"{before} {text}", put, *adds, overwrites=bool(limit))
        if adds:
            return _change(text, *adds)
        if others := sorted(each for each, _ in present - wanted):
            more = f"{text}, and {', '.join(others[:5])} too: remove those that should not be allowed"
            return _by_hand(more, page)
        return _ok(f"{text}{'' if name != 'release' or rules else '; add a reviewer before you release'}")

    def _check_secret(self, environment: str, name: str) -> SetupStep:
        """Check one wanted secret by its name, because GitHub never shows a value."""
        place = f"environments/{environment}" if environment else "actions"
        where = f"environment {environment}" if environment else "the repository"
        if environment and self._verdicts.get(f"env {environment}") is SetupVerdict.REFUSED:
            return _waits(f"{name} waits for the environment {environment}")
        if self._get(f"{place}/secrets/{name}", or_none=True) is not None:
            return _ok(f"{name} is in {where}; a value is never read")
        change = SecretChange(name, environment)
        if self._policy.can_ask(name):
            return _change(f"{name} in {where}", change)
        command = change.command_line(self._repository.host, self._repository.name)
        return _by_hand(f"{name} is not in {where}", Todo(HERE, command))

    def _check_runner(self) -> SetupStep:
        """Check that a runner with all labels is online, or had a job: GitHub does not list every kind."""
        labels, group, repository = self._selector.labels, self._selector.group, self._repository
        wanted = ", ".join([*labels, *([f"the group {group}"] if group else [])])
        is_own = self._kind is RunnerKind.SELF_HOSTED
        if is_own and not repository.is_private and not self._wanted.allow_public:
            text = (
                "the repository is public, so pull requests from strangers could reach your machine: make it "
                "private, or accept that with --allow-public"
            )
            return _by_hand(text, Todo(BROWSER, f"{repository.page}/settings#danger-zone"))
        listed = list_items(self._ask, f"{repository.base}/actions/runners", "runners") if is_own else []
        fitting = [each for each in listed if {*map(str.casefold, labels)} <= _labels_of(each)]
        names = ", ".join(str(each["name"]) for each in fitting[:5])
        run = "" if fitting or (is_own and not repository.is_of_organisation) else self._proven_since(LABELS)
        self._is_registered = bool(fitting or run)
        if online := [each for each in fitting if each.get("status") == "online"]:
            # Without the releases only the oldest version that GitHub registers is compared.
            versions = dict.fromkeys(str(each.get("version") or "") for each in online)
            problems = [version_problem(version, (), now=0.0) for version in versions]
            old = "".join(f"; one has {problem}" for problem in problems if problem)
            return _ok(f"{', '.join(str(each['name']) for each in online[:5])} online with {wanted}{old}")
        if fitting:
            look = "sudo systemctl status 'actions.runner.*'    # and restart, if it is stopped"
            return _by_hand(f"{names} has {wanted} and is offline", Todo(MACHINE, look))
        if run:
            return _ok(f"run {run} had a machine with {wanted}")
        if not is_own:
            return _waits(f"no run has shown yet that a machine with {wanted} takes jobs; the first run will")
        if not self._store:
            return _waits("the command for a machine comes once the store, whose folder it makes, is known")
        token = SetupChange("POST", f"{repository.base}/actions/runners/registration-token")
        unlisted = "; one of the organisation is not listed" if repository.is_of_organisation else ""
        text = f"no runner with the labels {wanted} is registered{unlisted}"
        step = _by_hand(text, self._registration(token))
        return replace(step, changes=(token,) if self._policy.dry_run else ())

    def _registration(self, for_token: SetupChange) -> Todo:
        """Return the command that makes a machine a runner; a dry run requests no token."""
        downloads = {
            str(each["architecture"]): (str(each["download_url"]), str(each["sha256_checksum"]))
            for each in self._get("actions/runners/downloads")
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

    def _check_aws_role(self) -> SetupStep:
        """Check that the role trusts this repository, by a run that was proven since the role is set."""
        repository = self._repository
        if run := self._proven_since(ROLE):
            return _ok(f"run {run}, which assumed it, was proven")
        subject = self._get("actions/oidc/customization/sub", or_none=True) or {}
        if repository.host != GITHUB or subject.get("use_default") is False:
            text = "GitHub's subjects are not the default here: write its trust policy by hand"
            return _by_hand(f"{text}; a run that is proven shows that it is right")
        form = Form.IMMUTABLE if is_immutable(subject, repository.created) else Form.NAMES
        ids = {"owner_id": repository.owner_id, "repository_id": repository.repository_id}
        write, create, update = trust_commands(self._role, repository.name, form, **ids)
        return _by_hand(
            f"no run has shown yet that {self._role.rpartition('/')[2]} trusts this repository's jobs",
            Todo(HERE, write),
            Todo(HERE, update, f"if there is no such role: {create}"),
        )

    def _check_watchdog(self) -> SetupStep:
        """Check that the watchdog is on; it is turned on only once a runner is registered."""
        if self._value(WATCH) or self._is_registered or self._kind is not RunnerKind.SELF_HOSTED:
            return self._check_variable(WATCH, self._value(WATCH) or "on")
        return _waits(f"{WATCH} = on, once a runner is registered")

    def _check_schedule(self, name: str) -> SetupStep:
        """Check that a workflow that polls has its schedule, which ships as a comment."""
        if name == "watch_runners.yml" and (found := self._value(WATCH)).lower() not in ("on", "true"):
            return _ok(f"{name} is off: {WATCH} = {found}") if found else _waits(f"once {WATCH} is on")
        path, branch = f"contents/.github/workflows/{name}", self._repository.branch
        file = self._get(path, or_none=True)
        if file is None:
            return _by_hand(f"{name} is not on {branch} yet", Todo(HERE, f"git push origin {branch}"))
        text = base64.b64decode(file["content"]).decode()
        if SCHEDULE in text:
            return _ok(f"{name} has its schedule")
        changed = text.replace(SCHEDULE.replace("s", "# s", 1), SCHEDULE, 1)
        if changed == text:
            return _by_hand(
                f"{name} on {branch} has neither a schedule nor its comment: take the shipped file"
            )
        body = {"message": f"Poll by {name}", "content": base64.b64encode(changed.encode()).decode()}
        put = SetupChange(
            "PUT", f"{self._repository.base}/{path}", {**body, "sha": file["sha"], "branch": branch}
        )
        text = f"{name} gets its schedule, by a commit on {branch}: git pull afterwards"
        return _change(text, put, overwrites=True)

    def _check_first_run(self) -> SetupStep:
        """Check that a training job was green."""
        runs, proven = self._runs()
        if proven:
            return _ok(f"run {proven['run_number']} trained and was proven")
        needed = ["actions", "workflow", "runner labels", "store", "fork PRs"]
        needed += ["runner"] if self._kind is RunnerKind.SELF_HOSTED else []  # others may appear with a job
        line = f"gh workflow run {WORKFLOW} --repo {self._for_gh} -f config=configs/smoke.yaml"
        text = "no training was proven yet"
        if any(self._verdicts.get(name, SetupVerdict.OK) not in FINISHED for name in needed):
            return _waits(text, Todo(HERE, line, "once a runner is online"))
        if not runs:
            return _by_hand(text, Todo(HERE, line))
        newest = f"{runs[0]['run_number']}: {runs[0].get('conclusion') or runs[0].get('status')}"
        look = f"gh run view {runs[0]['id']} --repo {self._for_gh} --log-failed"
        return _by_hand(f"{text}; the newest run is {newest}", Todo(HERE, look), Todo(HERE, line))

    def _proven_since(self, variable: str) -> str:
        """Return the number of the newest proven run since a variable has its value, or nothing."""
        _, run = self._runs()
        since = (self._get(f"actions/variables/{variable}", or_none=True) or {}).get("updated_at")
        return str(run["run_number"]) if run and str(run.get("created_at")) > str(since or "") else ""

    def _runs(self) -> tuple[list[Json], Json | None]:
        """Return the ten newest runs on the default branch, and the newest whose training job was green.

        A run that only showed its plan is green too, so only the training job counts.
        """
        branch = quote(self._repository.branch, safe="")
        path = f"actions/workflows/{WORKFLOW}/runs?branch={branch}&per_page=10"
        runs = (self._get(path, or_none=True) or {}).get("workflow_runs") or []
        for run in runs:
            jobs = list_items(self._ask, f"{self._repository.base}/actions/runs/{run['id']}/jobs", "jobs")
            if any(job.get("name") == TRAIN_JOB and job.get("conclusion") == "success" for job in jobs):
                return runs, run
        return runs, None

    def _get(self, path: str, *, or_none: bool = False) -> Any:
        return request(self._ask, "GET", f"{self._repository.base}/{path}", or_none=or_none)

    def _value(self, name: str) -> str:
        return str((self._get(f"actions/variables/{name}", or_none=True) or {}).get("value") or "")


# The table names the steps.
def _ok(text: str) -> SetupStep:
    return SetupStep("", SetupVerdict.OK, text)


def _waits(text: str, *todo: Todo) -> SetupStep:
    return SetupStep("", SetupVerdict.WAITS, text, todo=todo)


def _by_hand(text: str, *todo: Todo) -> SetupStep:
    return SetupStep("", SetupVerdict.YOU, text, todo=todo)


def _change(text: str, *changes: SetupChange | SecretChange, overwrites: bool = False) -> SetupStep:
    return SetupStep("", SetupVerdict.CHANGE, text, changes, overwrites)


def _labels_of(runner: Json) -> set[str]:
    """Return the labels of a runner in lower case, because GitHub ignores their case."""
    return {str(label.get("name")).casefold() for label in runner.get("labels", ())}
