"""The set-up of a repository on GitHub: a table of settings, each with its path in the API and its value.

    row ──read──> ok | you | waits
         └──> change ──> read again ──> done | refused

`Setup.rows` is the table. A row is read again after its change, so that it is done only when GitHub shows
it. A refused row does not stop the others. Settings that somebody chose are kept, or shown before they are
replaced; nothing is removed. What GitHub's console shows and its API does not is in docs/runner.md.
"""

import base64
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from trainyard.errors import ConfigError, ServiceError, ServiceTroubleError
from trainyard.github.job_end import TRAIN_JOB
from trainyard.github.repository import GITHUB, Repository, with_hint
from trainyard.github.runner_command import runner_command
from trainyard.github.setup_step import (
    BROWSER,
    HERE,
    MACHINE,
    SetupChange,
    SetupStep,
    SetupVerdict,
    Todo,
    repository_argument,
)
from trainyard.github.trust_policy import ENVIRONMENT, WORKFLOW, Subject, is_immutable, trust_policy
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
    from trainyard.gateways.github_api import GitHub

# The tags from which segments run whose branch has a newer workflow file.
LINEAGE = {("trainyard-lineage-*", "tag")}
# Environment -> what it is open to: instead of the default branch, or besides it.
LIMITS: Mapping[str, set[tuple[str, str]]] = {"release": {("v*", "tag")}, NOTIFY: set()}
TAGS = {"training": LINEAGE, "eks": LINEAGE}
SCHEDULE = "\n  schedule:"  # in a workflow file; watch_runners.yml ships with this line as a comment
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
    group: str = ""  # the organisation's runner group, used together with the labels
    kind: RunnerKind | None = None  # the kind of machine that the labels name; None for what the labels show
    store: str = ""
    role: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    secrets: Sequence[tuple[str, str]] = ()  # environment and name of each secret
    watch: bool = True
    environments: bool = True
    allow_public: bool = False


@dataclass(frozen=True)
class Setting:
    """One value that GitHub shows at a path, and how it is set."""

    path: str  # below `repos/OWNER/NAME/`; "not found" means that there is no value
    key: str  # of the answer, and of the body of the change
    wanted: Any  # None for any value
    label: str  # how the value is named: `LABEL: found → wanted`
    method: str = "PUT"
    change: str = ""  # path of a change without a body; empty for `path` with `{key: wanted}`
    create: str = ""  # path that takes name and value where there is none; empty if only a push creates it
    is_chosen: bool = True  # a present value was chosen by somebody, and --yes replaces it


# Row -> setting. The last one is for public repositories only.
_FILE, _FORKS = f"actions/workflows/{WORKFLOW}", "actions/permissions/fork-pr-contributor-approval"
_LABEL, _APPROVAL = "approval of outside pull requests", "all_external_contributors"
SETTINGS = {
    "actions": Setting("actions/permissions", "enabled", True, "Actions enabled"),
    "workflow": Setting(_FILE, "state", "active", WORKFLOW, change=f"{_FILE}/enable"),
    "fork PRs": Setting(_FORKS, "approval_policy", _APPROVAL, _LABEL, is_chosen=False),
}


def variable_setting(name: str, wanted: str | None) -> Setting:
    folder = "actions/variables"
    return Setting(f"{folder}/{name}", "value", wanted, name, "PATCH", create=folder)


class Setup:
    """The set-up of one repository; a later row may use what an earlier one found."""

    def __init__(
        self,
        api: "GitHub",
        repository: Repository,
        wanted: WantedSetup,
        *,
        dry_run: bool = True,
        replace_chosen: bool = False,
    ) -> None:
        """`replace_chosen`: settings that somebody chose are replaced."""
        self._api, self._repository, self._wanted = api, repository, wanted
        self._is_dry_run, self._replaces_chosen = dry_run, replace_chosen
        self._for_gh = repository_argument(repository.host, repository.name)
        self._selector, self._kind = RunnerSelector(tuple(wanted.labels), wanted.group), wanted.kind
        self._store, self._role, self._is_registered = wanted.store, wanted.role, False

    def steps(self) -> Iterator[SetupStep]:
        """Yield each step as soon as it is finished. Raises ServiceTroubleError if GitHub does not answer."""
        for name, check in self.rows():
            try:
                step = replace(check(), name=name)
                yield self._change(step, check) if step.verdict is SetupVerdict.CHANGE else step
            except ServiceTroubleError:
                raise
            except ServiceError as error:
                yield self._refusal(name, with_hint(error))

    def rows(self) -> Iterator[tuple[str, Callable[[], SetupStep]]]:
        """Yield name and function of each row, in order."""
        wanted, is_private = self._wanted, self._repository.is_private
        kind = "private" if is_private else "public"
        # `get_repository` refuses others.
        yield "repository", lambda: _ok(f"{kind}, no fork, not archived; you administer it")
        for name, setting in SETTINGS.items():
            if not (is_private and name == "fork PRs"):
                yield name, partial(self._check, setting)
        yield "runner labels", self._check_labels
        yield "store", self._check_store
        values = {**wanted.variables, **({ROLE: wanted.role} if wanted.role else {})}
        if self._kind is RunnerKind.HOSTED and (wanted.labels or not self._value(JOB_MINUTES)):
            values = {JOB_MINUTES: HOSTED_MINUTES, **values}  # GitHub's machines end after six hours
        for name, value in values.items():
            yield "variable", partial(self._check, variable_setting(name, value))
        reports = (NOTIFY,) if any(place == NOTIFY for place, _ in wanted.secrets) else ()
        for name in (*ENVIRONMENTS, *reports) if wanted.environments else ():
            yield f"env {name}", partial(self._check_environment, name)
        for place, name in wanted.secrets:
            yield "secret", partial(self._check_secret, place if wanted.environments else "", name)
        if self._kind is not None:
            yield "runner", self._check_runner
        if self._role:
            yield "aws role", self._check_aws_role
        if wanted.watch and self._kind is RunnerKind.SELF_HOSTED:
            yield "watchdog", self._check_watchdog
            yield "poll runners", partial(self._check_schedule, "watch_runners.yml")
        yield "first green", self._check_first_run

    def _change(self, step: SetupStep, check: Callable[[], SetupStep]) -> SetupStep:
        """Make the changes of a step and read it again; a change is done only when GitHub shows it."""
        if self._is_dry_run:
            return replace(step, verdict=SetupVerdict.WOULD)
        if step.overwrites and not self._replaces_chosen:
            return replace(step, verdict=SetupVerdict.YOU, text=f"{step.text}: not changed; --yes changes it")
        refusal = "GitHub accepted the change but does not show it"
        try:
            for change in step.changes:
                self._make(change)
        except ServiceTroubleError:
            raise
        except ServiceError as error:
            refusal = with_hint(error)
        again = replace(check(), name=step.name)
        if again.verdict is SetupVerdict.CHANGE:
            return self._refusal(step.name, f"{step.text}: {refusal}")
        return replace(again, verdict=SetupVerdict.DONE) if again.verdict is SetupVerdict.OK else again

    def _refusal(self, name: str, reason: str) -> SetupStep:
        is_of_plan = name.startswith("env ") and self._repository.is_private and "accessible" not in reason
        plan = _FREE_PLAN if is_of_plan else ""
        return SetupStep(name, SetupVerdict.REFUSED, f"{reason.rstrip('.')}{plan}")

    def _check(self, setting: Setting) -> SetupStep:
        """Compare one value with the wanted one, or with any value where None is wanted."""
        answer, base = self._get(setting.path, or_none=True), self._repository.base
        found = None if answer is None else answer.get(setting.key)
        is_set = found not in (None, "")
        if is_set and setting.wanted in (None, found):
            return _ok(f"{setting.label} = {found}")
        if answer is None and not setting.create:
            return self._missing(setting.label)
        if setting.wanted is None:
            return _by_hand(f"{setting.label} is not set")
        call = SetupChange(setting.method, f"{base}/{setting.path}", {setting.key: setting.wanted})
        if setting.change:
            call = SetupChange(setting.method, f"{base}/{setting.change}")
        if answer is None:
            body = {"name": setting.label, setting.key: setting.wanted}
            call = SetupChange("POST", f"{base}/{setting.create}", body)
        text = f"{setting.label}{f': {found} →' if is_set else ' ='} {setting.wanted}"
        return _change(text, call, overwrites=is_set and setting.is_chosen)

    def _missing(self, name: str) -> SetupStep:
        branch = self._repository.branch
        return _by_hand(f"{name} is not on {branch} yet", Todo(HERE, f"git push origin {branch}"))

    # The rows that need more than one value.

    def _check_labels(self) -> SetupStep:
        found, is_wanted = self._value(LABELS), bool(self._wanted.labels or self._wanted.group)
        known = self._wanted.variables
        elsewhere = [name for name in (CODEBUILD, CLUSTER) if known.get(name) or self._value(name)]
        if not is_wanted and not found and elsewhere:
            return _ok(f"{elsewhere[0]} says where to train; no runner of your own")
        if not is_wanted:
            self._selector, self._kind = RunnerSelector(DEFAULT_LABELS), RunnerKind.SELF_HOSTED
            try:
                self._selector = selector_in_json(found) if found else self._selector
            except ConfigError as error:
                return _by_hand(f"{LABELS}: {error}; --labels gpu replaces it")
        self._kind = self._wanted.kind or runner_kind(self._selector)
        wanted = None if found and not is_wanted else labels_text(self._selector)
        return self._check(variable_setting(LABELS, wanted))

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
        return self._check(variable_setting(STORE, self._wanted.store or None))

    def _check_environment(self, name: str) -> SetupStep:
        """Check that an environment exists, with its limit; what others added to it is kept."""
        base, path = self._repository.base, f"environments/{name}"
        page = Todo(BROWSER, f"{self._repository.page}/settings/environments")
        found = self._get(path, or_none=True)
        limit = (found or {}).get("deployment_branch_policy")
        rules = [one for one in (found or {}).get("protection_rules") or () if one["type"] != "branch_policy"]
        wanted = LIMITS.get(name, {(self._repository.branch, "branch"), *TAGS.get(name, ())})
        names = ", ".join(sorted(each for each, _ in wanted))
        text = f"limited to {names}" if names else "open to every branch"
        if not wanted and (rules or limit):
            return _by_hand("reviewers or a branch limit delay reports of failed runs: remove them", page)
        is_limited = bool((limit or {}).get("custom_branch_policies"))
        if rules and not is_limited:
            return _by_hand(f"it has rules of yours and no such limit: add one, {text}", page)
        policies = f"{base}/{path}/deployment-branch-policies"
        listed = self._list(f"{path}/deployment-branch-policies", "branch_policies") if is_limited else []
        present = {(str(each["name"]), str(each.get("type", "branch"))) for each in listed}
        bodies = [{"name": pattern, "type": kind} for pattern, kind in sorted(wanted - present)]
        changes = [SetupChange("POST", policies, body) for body in bodies]
        if found is None or (wanted and not is_limited):
            custom = {"protected_branches": False, "custom_branch_policies": True} if wanted else None
            put = SetupChange("PUT", f"{base}/{path}", {"deployment_branch_policy": custom})
            before = "new," if found is None else "protected branches →" if limit else "every branch →"
            return _change(f"{before} {text}", put, *changes, overwrites=bool(limit))
        if changes:
            return _change(text, *changes)
        others = sorted(each for each, _ in present - wanted)
        more = f"; by your choice also open to {', '.join(others[:5])}" if others else ""
        review = "; add a reviewer before you release" if name == "release" and not rules else ""
        return _ok(f"{text}{more}{review}")

    def _check_secret(self, environment: str, name: str) -> SetupStep:
        """Check one wanted secret by its name, because GitHub never shows a value."""
        place = f"environments/{environment}" if environment else "actions"
        where = f"environment {environment}" if environment else "the repository"
        if self._get(f"{place}/secrets/{name}", or_none=True) is not None:
            return _ok(f"{name} is in {where}; a value is never read")
        of = f" --env {environment}" if environment else ""
        command = f"gh secret set {name}{of} --repo {self._for_gh}"
        return _by_hand(f"{name} is not in {where}", Todo(HERE, command, "gh asks for the value"))

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
        listed = self._list("actions/runners", "runners") if is_own else []
        needed = {*map(str.casefold, labels)}  # GitHub ignores the case of labels
        fitting = [each for each in listed if needed <= {one["name"].casefold() for one in each["labels"]}]
        run = "" if fitting or (is_own and not repository.is_of_organisation) else self._proven_since(LABELS)
        self._is_registered = bool(fitting or run)
        if online := [str(each["name"]) for each in fitting if each.get("status") == "online"]:
            return _ok(f"{', '.join(online[:5])} online with {wanted}")
        if fitting:
            look = "sudo systemctl status 'actions.runner.*'    # and restart, if it is stopped"
            names = ", ".join(str(each["name"]) for each in fitting[:5])
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
        return replace(step, changes=(token,) if self._is_dry_run else ())

    def _registration(self, for_token: SetupChange) -> Todo:
        """Return the command that makes a machine a runner; a dry run requests no token."""
        downloads = {
            str(each["architecture"]): (str(each["download_url"]), str(each["sha256_checksum"]))
            for each in self._get("actions/runners/downloads")
            if each.get("os") == "linux" and each.get("sha256_checksum")
        }
        token, note = "TOKEN", "a run without --dry-run inserts a token that is valid for an hour"
        if not self._is_dry_run:
            made = self._make(for_token)
            ends = datetime.fromisoformat(made["expires_at"]).astimezone(UTC)
            token = str(made["token"])
            note = f"the token in it is for one hour, until {ends:%H:%M} UTC; run this again for a new one"
        folders = [unquote(self._store.removeprefix("file://"))] if self._store.startswith("file://") else []
        if runs := self._wanted.variables.get(RUNS_DIRECTORY):
            folders.append(runs)
        page, labels = self._repository.page, self._selector.labels
        return Todo(MACHINE, runner_command(page, labels, downloads, token=token, folders=folders), note)

    def _check_aws_role(self) -> SetupStep:
        """Check that the role trusts this repository, by a run that was proven since the role is set."""
        repository = self._repository
        if run := self._proven_since(ROLE):
            return _ok(f"run {run}, which assumed it, was proven")
        subject = self._get("actions/oidc/customization/sub", or_none=True) or {}
        text = f"no run has shown yet that {self._role.rpartition('/')[2]} trusts this repository's jobs"
        if repository.host != GITHUB or subject.get("use_default") is False:
            return _by_hand(f"{text}; GitHub's subjects are not the default here: write the policy by hand")
        ids = (repository.owner_id, repository.repository_id)
        known = ids if is_immutable(subject, repository.created) else ()
        policy = trust_policy(Subject(repository.name, ENVIRONMENT, *known), self._role)
        line = f"echo {shlex.quote(json.dumps(policy))} > trust.json"
        return _by_hand(text, Todo(HERE, line, "then docs/runbooks/permissions.md#aws-role"))

    def _check_watchdog(self) -> SetupStep:
        """Check that the watchdog is on; it is turned on only once a runner is registered."""
        if self._value(WATCH) or self._is_registered or self._kind is not RunnerKind.SELF_HOSTED:
            return self._check(variable_setting(WATCH, self._value(WATCH) or "on"))
        return _waits(f"{WATCH} = on, once a runner is registered")

    def _check_schedule(self, name: str) -> SetupStep:
        """Check that a workflow that polls has its schedule, which ships as a comment."""
        if name == "watch_runners.yml" and (found := self._value(WATCH)).lower() not in ("on", "true"):
            return _ok(f"{name} is off: {WATCH} = {found}") if found else _waits(f"once {WATCH} is on")
        path, branch = f"contents/.github/workflows/{name}", self._repository.branch
        file = self._get(path, or_none=True)
        if file is None:
            return self._missing(name)
        text = base64.b64decode(file["content"]).decode()
        if SCHEDULE in text:
            return _ok(f"{name} has its schedule")
        changed = text.replace(SCHEDULE.replace("s", "# s", 1), SCHEDULE, 1)
        if changed == text:
            return _by_hand(
                f"{name} on {branch} has no schedule, not even as a comment: take the shipped file"
            )
        content = base64.b64encode(changed.encode()).decode()
        body = {"message": f"Poll by {name}", "content": content, "sha": file["sha"], "branch": branch}
        put = SetupChange("PUT", f"{self._repository.base}/{path}", body)
        text = f"{name} gets its schedule, by a commit on {branch}: git pull afterwards"
        return _change(text, put, overwrites=True)

    def _check_first_run(self) -> SetupStep:
        """Check that a training job was green."""
        runs, proven = self._runs()
        if proven:
            return _ok(f"run {proven['run_number']} trained and was proven")
        line = f"gh workflow run {WORKFLOW} --repo {self._for_gh} -f config=configs/smoke.yaml"
        start = Todo(HERE, line, "once the steps above are done and a runner is online")
        if not runs:
            return _by_hand("no training was proven yet", start)
        newest = f"{runs[0]['run_number']}: {runs[0].get('conclusion') or runs[0].get('status')}"
        look = Todo(HERE, f"gh run view {runs[0]['id']} --repo {self._for_gh} --log-failed")
        return _by_hand(f"no training was proven yet; the newest run is {newest}", look, start)

    def _proven_since(self, variable: str) -> str:
        """Return the number of the newest proven run since a variable has its value, or nothing."""
        _, run = self._runs()
        since = (self._get(f"actions/variables/{variable}", or_none=True) or {}).get("updated_at")
        return str(run["run_number"]) if run and str(run.get("created_at")) > str(since or "") else ""

    def _runs(self) -> tuple[list[Json], Json | None]:
        """Return the ten newest runs on the default branch, and the newest whose training job was green.

        A run that only showed its plan is green too, so only the training job counts, which is named
        `CALLER / JOB` where a called workflow has it.
        """
        branch = quote(self._repository.branch, safe="")
        path = f"actions/workflows/{WORKFLOW}/runs?branch={branch}&per_page=10"
        runs = (self._get(path, or_none=True) or {}).get("workflow_runs") or []
        for run in runs:
            jobs = self._list(f"actions/runs/{run['id']}/jobs", "jobs")
            green = [str(job["name"]) for job in jobs if job.get("conclusion") == "success"]
            if any(name.split(" / ")[-1] == TRAIN_JOB for name in green):
                return runs, run
        return runs, None

    def _get(self, path: str, *, or_none: bool = False) -> Any:
        return self._api.get(f"/{path}", or_none=or_none)

    def _list(self, path: str, key: str) -> list[Json]:
        return list(self._api.pages(f"/{path}", key))

    def _make(self, change: SetupChange) -> Any:
        return self._api.change(change.method, change.path.removeprefix(self._repository.base), change.body)

    def _value(self, name: str) -> str:
        return str((self._get(f"actions/variables/{name}", or_none=True) or {}).get("value") or "")


# The table names the steps.
def _ok(text: str) -> SetupStep:
    return SetupStep("", SetupVerdict.OK, text)


def _waits(text: str, *todo: Todo) -> SetupStep:
    return SetupStep("", SetupVerdict.WAITS, text, todo=todo)


def _by_hand(text: str, *todo: Todo) -> SetupStep:
    return SetupStep("", SetupVerdict.YOU, text, todo=todo)


def _change(text: str, *changes: SetupChange, overwrites: bool = False) -> SetupStep:
    return SetupStep("", SetupVerdict.CHANGE, text, changes, overwrites)
