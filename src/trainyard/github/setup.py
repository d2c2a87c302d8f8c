"""The set-up of a copy of this repository on GitHub, step by step: ask, judge, change, ask again.

    ask ──> what is there ──rules──> step ──> ok | you | waits
                                       └──> change ──> ask ──rules──> done | refused

The functions that ask GitHub and the person are passed in. A refused step does not stop the steps that do not
depend on it; when GitHub cannot be reached, the remaining steps are skipped. Nothing is kept between two
runs: each run reads the present state again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

from trainyard.errors import ConfigError, ServiceError, ServiceTroubleError
from trainyard.github import rules
from trainyard.github.address import GITHUB
from trainyard.github.job_times import deadline_of
from trainyard.github.repository_api import Ask, RefusedError, get_every_item, get_if_found, request
from trainyard.github.runner_command import Registration, runner_command
from trainyard.github.setup_step import SecretChange, SetupChange, SetupStep, SetupVerdict, Todo
from trainyard.github.trust_verdict import WORKFLOW, Trusted, is_immutable
from trainyard.github.variables import (
    CLUSTER,
    CODEBUILD,
    DEADLINE,
    DEFAULT_LABELS,
    ENVIRONMENTS,
    HOSTED_MINUTES,
    JOB_MINUTES,
    LABELS,
    ROLE,
    STORE,
    WATCH,
    RunnerKind,
    is_pod_of_scale_set,
    is_self_hosted,
    labels_for,
    labels_of_variable,
    runner_kind,
)

NEWEST_RUNS = 10
SCRIPT = "PYTHONPATH=src python3 scripts/setup_github.py"
AskAws = Callable[[str], tuple[Mapping[str, Any] | None, str]]
"""Role name -> its trust policy, or the reason why it could not be read."""


@dataclass(frozen=True)
class WantedSetup:
    """The wanted settings; an empty value keeps the present one."""

    labels: Sequence[str] = ()
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
class Manner:
    """How changes are made."""

    dry_run: bool
    agreed: Callable[[SetupStep], bool]
    """Shows the person a change that replaces something, and returns whether it may be made."""
    can_ask: Callable[[str], bool]
    """Whether the value of a secret is given or can be asked for."""
    set_secret: Callable[[SecretChange], None]
    """Raises ServiceError."""


class Setup:
    """The set-up of one repository, from a fresh copy to its first green run."""

    def __init__(
        self, ask: Ask, about: rules.About, wanted: WantedSetup, manner: Manner, *, ask_aws: AskAws
    ) -> None:
        self._ask, self._ask_aws, self._about = ask, ask_aws, about
        self._wanted, self._manner = wanted, manner
        self._cut = ""
        self._labels: Sequence[str] = tuple(wanted.labels) or DEFAULT_LABELS
        self._kind: RunnerKind | None = RunnerKind.SELF_HOSTED
        self._store, self._role, self._role_since = wanted.store, wanted.role, ""
        self._registered = self._command_shown = False
        self._missing: frozenset[str] = frozenset()
        """Wanted environments that do not exist."""
        self._variables: dict[str, dict[str, Any]] | None = None
        self._trained: rules.Trained | None = None

    def steps(self) -> Iterator[SetupStep]:
        """Every step, yielded as soon as it is finished."""
        yield rules.repository_step(self._about)
        done: dict[str, SetupStep] = {}
        for name, judge in self._judges():
            step = self._settled(name, judge)
            done[step.name] = step
            yield step
        needed = ["actions", "workflow", "runner labels", "store", "fork PRs"]
        needed += ["runner"] if self._kind is RunnerKind.SELF_HOSTED else []  # others may appear with a job
        settled = (SetupVerdict.OK, SetupVerdict.DONE, SetupVerdict.OPTIONAL)
        ready = all(done[name].verdict in settled for name in needed if name in done)
        yield self._settled(
            "first green", lambda: rules.first_run(self._last_runs(), ready=ready, about=self._about)
        )
        yield self._settled("branch rule", self._branch_rule)

    def _judges(self) -> Iterator[tuple[str, Callable[[], SetupStep]]]:
        """The steps in their order; a later step may use what an earlier one found."""
        yield "actions", self._actions
        yield "workflow", self._workflow
        if not self._about.private:
            yield "fork PRs", self._fork_requests
        yield "runner labels", self._labels_step
        if self._kind is RunnerKind.HOSTED and JOB_MINUTES not in self._wanted.variables:
            yield "variable", self._job_minutes
            if DEADLINE not in self._wanted.variables and self._found_value(DEADLINE):
                yield "variable", self._deadline
        yield "store", self._store_step
        for name, value in self._wanted.variables.items():
            yield "variable", partial(self._variable, "variable", name, value)
        if self._wanted.role:
            yield "variable", partial(self._variable, "variable", ROLE, self._wanted.role)
        for name in ENVIRONMENTS if self._wanted.environments else ():
            yield f"env {name}", partial(self._environment, name)
        for place, name in self._wanted.secrets:
            yield "secret", partial(self._secret, place, name)
        if self._labels:
            yield "runner", self._runner
        yield "gpu machine", self._machine
        if self._role:
            yield "aws role", self._aws_role
        yield "watchdog", self._watch

    def _settled(self, name: str, judge: Callable[[], SetupStep]) -> SetupStep:
        """A step after its changes were made and read back, or with the reason why they were not."""
        if self._cut:
            return SetupStep(name, SetupVerdict.UNREACHED, "run it again: finished steps are kept")
        try:
            step = judge()
            return self._changed(step, judge) if step.verdict is SetupVerdict.CHANGE else step
        except ServiceTroubleError as error:
            self._cut = str(error)
            return SetupStep(name, SetupVerdict.UNREACHED, self._cut)
        except RefusedError as error:
            if "upgrade" in error.said.lower() and self._plan_lacks(name, error):
                return self._without_plan(name, f"GitHub said {error.said}")
            return SetupStep(name, SetupVerdict.REFUSED, str(error))

    def _changed(self, step: SetupStep, judge: Callable[[], SetupStep]) -> SetupStep:
        if self._manner.dry_run:
            return replace(step, verdict=SetupVerdict.WOULD)
        if step.overwrites and not self._manner.agreed(step):
            return replace(step, verdict=SetupVerdict.YOU, text=f"{step.text}: not changed; --yes changes it")
        refusal = self._make(step.changes)
        again = judge()
        if again.verdict is not SetupVerdict.CHANGE:
            return replace(again, verdict=SetupVerdict.DONE) if again.verdict is SetupVerdict.OK else again
        if isinstance(refusal, ServiceTroubleError):
            raise refusal
        if isinstance(refusal, RefusedError) and self._plan_lacks(step.name, refusal):
            return self._without_plan(step.name, f"GitHub said {refusal.said}")
        if refusal is None and step.name.startswith("env ") and self._about.private:
            return self._without_plan(step.name, "GitHub accepted the limit but did not keep it")
        reason = str(refusal) if refusal else "GitHub accepted the change but does not show it"
        return replace(step, verdict=SetupVerdict.REFUSED, text=f"{step.text}: {reason}", changes=())

    def _make(self, changes: Sequence[SetupChange | SecretChange]) -> ServiceError | None:
        """Make the changes in their order and stop at the first refusal, which is returned."""
        self._variables = None
        for change in changes:
            try:
                if isinstance(change, SecretChange):
                    self._manner.set_secret(change)
                else:
                    request(self._ask, change.method, change.path, change.body)
            except ServiceError as error:
                return error
        return None

    def _plan_lacks(self, name: str, refusal: RefusedError) -> bool:
        """Whether GitHub's plan lacks environments, as opposed to the login lacking the permission."""
        login = "not accessible" in refusal.said or "admin" in refusal.said.lower()
        lacks = name.startswith("env ") and refusal.status in (403, 404, 422)
        return lacks and self._about.private and not login

    def _without_plan(self, name: str, message: str) -> SetupStep:
        return rules.environment_refused(name.removeprefix("env "), message, self._about)

    def _actions(self) -> SetupStep:
        path = f"{self._about.base}/actions/permissions"
        found = request(self._ask, "GET", path)
        only_selected = found.get("allowed_actions") == "selected"
        selected = request(self._ask, "GET", f"{path}/selected-actions") if only_selected else {}
        return rules.actions_step(found, selected, self._about, role=bool(self._wanted.role))

    def _workflow(self) -> SetupStep:
        path = f"{self._about.base}/actions/workflows/{WORKFLOW}"
        return rules.workflow_step(get_if_found(self._ask, path), self._about)

    def _fork_requests(self) -> SetupStep:
        path = f"{self._about.base}/actions/permissions/fork-pr-contributor-approval"
        return rules.fork_requests_step(request(self._ask, "GET", path), self._about)

    def _found(self) -> dict[str, dict[str, Any]]:
        """The variables of the repository, by name; read again after every change."""
        if self._variables is None:
            items = get_every_item(self._ask, f"{self._about.base}/actions/variables", "variables", size=30)
            self._variables = {str(item["name"]): item for item in items}
        return self._variables

    def _labels_step(self) -> SetupStep:
        name, found = "runner labels", self._found().get(LABELS, {}).get("value")
        wanted, kind = tuple(self._wanted.labels), self._wanted.kind
        if not (wanted or found or kind) and (place := self._other_place()):
            self._labels, self._kind = (), None
            text = f"{place} says where to train; no runner of your own"
            return SetupStep(name, SetupVerdict.OPTIONAL, text)
        try:
            given = wanted or (labels_of_variable(found) if found else ())
            if not given and kind in (None, RunnerKind.SELF_HOSTED):
                given = DEFAULT_LABELS
            if not given:
                return rules.unnamed_machine(str(kind))
            self._kind = kind or runner_kind(given) or self._seen_kind(given)
            self._labels = labels_for(self._kind, given) if self._kind else given
        except ConfigError as error:
            return SetupStep(
                name, SetupVerdict.YOU, f"{LABELS}: {error}; --labels self-hosted,gpu replaces it"
            )
        if wanted and self._kind is None:
            return rules.unknown_kind(given, SCRIPT)
        return rules.labels_row(found, self._labels if wanted or kind else None, self._labels, self._about)

    def _other_place(self) -> str:
        """The variable that names CodeBuild or a cluster; empty where neither is, or is to be, set."""
        known = {**self._found(), **self._wanted.variables}
        return next((name for name in (CODEBUILD, CLUSTER) if known.get(name)), "")

    def _seen_kind(self, labels: Sequence[str]) -> RunnerKind | None:
        """The kind of machine by what GitHub lists; None where it lists none with these labels."""
        runners = get_every_item(self._ask, f"{self._about.base}/actions/runners", "runners")
        fitting = rules.fitting_runners(runners, labels)
        if not fitting and self._about.organisation:
            fitting, _ = self._runners_of_organisation(labels)
        if fitting:
            if len(labels) == 1 and is_pod_of_scale_set(str(fitting[0].get("name")), labels[0]):
                return RunnerKind.SCALE_SET
            names = [str(label.get("name")) for label in fitting[0].get("labels", ())]
            return RunnerKind.SELF_HOSTED if is_self_hosted(names) else RunnerKind.OTHER
        return RunnerKind.HOSTED if len(labels) == 1 and self._hosted_machines(labels[0])[0] else None

    def _hosted_machines(self, name: str) -> tuple[list[rules.Json], str]:
        """The organisation's machines at GitHub of this name; the second value says why none were listed."""
        if not self._about.organisation:
            return [], ""
        path = f"orgs/{self._about.name.split('/')[0]}/actions/hosted-runners"
        try:
            found = get_every_item(self._ask, path, "runners")
        except RefusedError as error:
            return [], f"; the organisation's were not listed ({error.said}): it takes manage_runners:org"
        return [each for each in found if str(each.get("name")).casefold() == name.casefold()], ""

    def _job_minutes(self) -> SetupStep:
        """The time limit of the training job, which GitHub's machines end after six hours."""
        found = str(self._found().get(JOB_MINUTES, {}).get("value") or "")
        is_short = found.isascii() and found.isdecimal() and int(found) <= int(HOSTED_MINUTES)
        return self._variable("variable", JOB_MINUTES, found if is_short else HOSTED_MINUTES)

    def _deadline(self) -> SetupStep:
        """The deadline, which the plan refuses where it is too late for the job's time limit."""
        found, limit = self._found_value(DEADLINE), self._found_value(JOB_MINUTES)
        minutes = int(limit if limit.isascii() and limit.isdecimal() else HOSTED_MINUTES)
        try:
            wanted = deadline_of(found, min(minutes, int(HOSTED_MINUTES)))
        except ConfigError:
            wanted = deadline_of("", min(minutes, int(HOSTED_MINUTES)))
        return self._variable("variable", DEADLINE, wanted)

    def _found_value(self, name: str) -> str:
        return str(self._found().get(name, {}).get("value") or "")

    def _store_step(self) -> SetupStep:
        role = self._found().get(ROLE, {})
        self._role = self._wanted.role or str(role.get("value") or "")
        self._role_since = str(role.get("updated_at") or "")
        self._store = self._wanted.store or str(self._found().get(STORE, {}).get("value") or "")
        if self._store.startswith("file://") and self._kind in (RunnerKind.HOSTED, RunnerKind.SCALE_SET):
            text = f"{self._store} is lost with the machine, which ends with its job; name a bucket"
            line = f"{SCRIPT} --store s3://BUCKET/PREFIX"
            return SetupStep("store", SetupVerdict.YOU, text, todo=(Todo(rules.HERE, line),))
        step = self._variable("store", STORE, self._wanted.store or None)
        if step.verdict is SetupVerdict.YOU:
            where = "say where runs are stored: a folder of the machine or s3://bucket/prefix"
            line = f"{SCRIPT} --store file:///mnt/storage/store"
            return replace(step, text=f"{step.text}; {where}", todo=(Todo(rules.HERE, line),))
        return step

    def _variable(self, row: str, name: str, value: str | None) -> SetupStep:
        found = self._found().get(name, {}).get("value")
        return rules.variable_step(row, name, self._about, found=found, wanted=value)

    def _environment(self, name: str) -> SetupStep:
        path = f"{self._about.base}/environments/{name}"
        found = get_if_found(self._ask, path)
        self._missing = self._missing - {name} if found else self._missing | {name}
        policies: list[Any] = []
        if ((found or {}).get("deployment_branch_policy") or {}).get("custom_branch_policies"):
            policies = get_every_item(self._ask, f"{path}/deployment-branch-policies", "branch_policies")
        return rules.environment_step(name, found, policies, self._about)

    def _secret(self, place: str, name: str) -> SetupStep:
        environment = place if self._wanted.environments else ""
        if environment in self._missing and not self._manner.dry_run:
            return SetupStep("secret", SetupVerdict.WAITS, f"{name} waits for the environment {environment}")
        part = f"environments/{environment}" if environment else "actions"
        items = get_every_item(
            self._ask, f"{self._about.base}/{part}/secrets", "secrets", none=bool(environment)
        )
        change = SecretChange(name, environment)
        can_ask = self._manner.can_ask(name)
        return rules.secret_step(change, [str(i["name"]) for i in items], can_ask=can_ask, about=self._about)

    def _runner(self) -> SetupStep:
        if self._kind is RunnerKind.HOSTED:
            machines, remark = self._hosted_machines(self._labels[0])
            ran = self._last_runs().check_run
            return rules.unregistered_runner(self._labels, machines=machines, ran=ran, remark=remark)
        if not self._about.private and not self._wanted.allow_public:
            return rules.public_runner(self._about)
        runners = get_every_item(self._ask, f"{self._about.base}/actions/runners", "runners")
        fitting, remark = rules.fitting_runners(runners, self._labels), ""
        if not fitting and self._about.organisation:
            fitting, remark = self._runners_of_organisation(self._labels)
        self._registered = bool(fitting)
        if fitting:
            return rules.runner_step(fitting, self._labels)
        if self._kind is not RunnerKind.SELF_HOSTED:
            return rules.unregistered_runner(self._labels, ran=self._last_runs().check_run, remark=remark)
        if not self._store:
            text = "the command for a machine comes once the store is known, because it creates its folder"
            return SetupStep("runner", SetupVerdict.WAITS, text)
        self._command_shown = True
        said, todo = rules.lacking_labels(runners, self._labels, self._about)
        token = SetupChange("POST", f"{self._about.base}/actions/runners/registration-token")
        step = rules.runner_step((), self._labels, remark=remark + said, todo=(*todo, self._command(token)))
        return replace(step, changes=(token,) if self._manner.dry_run else ())

    def _runners_of_organisation(self, labels: Sequence[str]) -> tuple[list[rules.Json], str]:
        """The runners with the labels, in groups that this repository may use.

        If they may not be listed, the list is empty and the second value is a remark that says so.
        """
        owner, name = self._about.name.split("/")
        base = f"orgs/{owner}/actions/runner-groups"
        try:
            groups = get_every_item(self._ask, f"{base}?visible_to_repository={quote(name)}", "runner_groups")
            found = [
                r for g in groups for r in get_every_item(self._ask, f"{base}/{g['id']}/runners", "runners")
            ]
        except RefusedError as error:
            return (
                [],
                f"; the organisation's runners were not listed ({error.said}): it takes the scope admin:org",
            )
        return rules.fitting_runners(found, labels), ""

    def _command(self, for_token: SetupChange) -> Todo:
        """The command that makes a machine a runner; a dry run requests no token."""
        downloads = {
            str(each["architecture"]): (str(each["download_url"]), str(each["sha256_checksum"]))
            for each in request(self._ask, "GET", f"{self._about.base}/actions/runners/downloads")
            if each.get("os") == "linux" and each.get("sha256_checksum")
        }
        token, note = "TOKEN", "a run without --dry-run inserts a token that is valid for an hour"
        if not self._manner.dry_run:
            made = request(self._ask, for_token.method, for_token.path)
            token, ends = str(made["token"]), _in_utc(str(made.get("expires_at") or ""))
            note = f"the token in it is for one hour{ends}; run this again for a new one"
        folders = [unquote(self._store.removeprefix("file://"))] if self._store.startswith("file://") else []
        if runs := self._wanted.variables.get("TRAINYARD_RUNS_DIRECTORY"):
            folders.append(runs)
        registration = Registration(self._about.page, self._labels, downloads, token, folders)
        return Todo(rules.MACHINE, runner_command(registration), note)

    def _machine(self) -> SetupStep:
        return rules.machine_step(self._last_runs(), command_shown=self._command_shown, about=self._about)

    def _last_runs(self) -> rules.Trained:
        """The results of the newest runs, which are read once."""
        if self._trained is None:
            self._trained = self._read_runs()
        return self._trained

    def _read_runs(self) -> rules.Trained:
        base = f"{self._about.base}/actions"
        path = f"{base}/workflows/{WORKFLOW}/runs?branch={quote(self._about.branch, safe='')}"
        answer = get_if_found(self._ask, f"{path}&per_page={NEWEST_RUNS}") or {}
        runs = answer.get("workflow_runs") or []
        with_jobs = [
            (run, get_every_item(self._ask, f"{base}/runs/{run['id']}/jobs", "jobs")) for run in runs
        ]
        return rules.find_trained(with_jobs, self._labels, self._role_since)

    def _aws_role(self) -> SetupStep:
        subject = get_if_found(self._ask, f"{self._about.base}/actions/oidc/customization/sub") or {}
        about, assumed_by = self._about, self._last_runs().role_run
        if about.host != GITHUB:
            return rules.role_of_other_issuer("this host has an issuer of its own", assumed_by=assumed_by)
        if subject.get("use_default") is False:
            return rules.role_of_other_issuer("the subjects are customised here", assumed_by=assumed_by)
        immutable = is_immutable(subject, about.created)
        trusted = Trusted(self._role, about.name, about.owner_id, about.repository_id, immutable)
        held, why_not = self._ask_aws(trusted.name)
        return rules.role_step(trusted, held, why_not, assumed_by=assumed_by)

    def _watch(self) -> SetupStep:
        found = self._found().get(WATCH, {}).get("value")
        if self._kind is RunnerKind.SELF_HOSTED or found:
            registered = self._registered
        elif self._labels or self._other_place() != CODEBUILD:
            text = f"{WATCH} is not set: it judges registered machines, and these come and go"
            return SetupStep("watchdog", SetupVerdict.OPTIONAL, text)
        else:
            registered = True  # it looks after CodeBuild's jobs
        return rules.watch_step(found, registered=registered, wanted=self._wanted.watch, about=self._about)

    def _branch_rule(self) -> SetupStep:
        path = f"{self._about.base}/rules/branches/{quote(self._about.branch, safe='')}"
        answer = self._ask("GET", f"{path}?per_page=100")
        found = answer.content if answer.status == 200 and isinstance(answer.content, list) else None
        return rules.branch_rule(found, self._about)


def _in_utc(time: str) -> str:
    """`, until 11:12 UTC`; empty when GitHub's text is not a time."""
    try:
        return f", until {datetime.fromisoformat(time).astimezone(UTC):%H:%M} UTC"
    except ValueError:
        return ""
