"""The set-up of a copy of this repository on GitHub: go through the table of settings, change, read back.

    settings ──> row ──check──> ok | you | waits
                                └──> change ──> check again ──> done | refused

A refused row does not stop the rows that do not depend on it; when GitHub cannot be reached, the remaining
rows are skipped. Nothing is kept between two runs: each run reads the present state again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trainyard.errors import ServiceError, ServiceTroubleError
from trainyard.github.repository import RefusedError, Repository, request
from trainyard.github.settings import AskAws, ChangePolicy, Settings, WantedSetup, environments_missing
from trainyard.github.setup_step import SecretChange, SetupChange, SetupStep, SetupVerdict

if TYPE_CHECKING:
    from trainyard.github.repository import Ask


class Setup:
    """The set-up of one repository, from a fresh copy to its first green run."""

    def __init__(
        self,
        ask: "Ask",
        repository: Repository,
        wanted: WantedSetup,
        policy: ChangePolicy,
        *,
        ask_aws: AskAws,
    ) -> None:
        self._ask, self._repository, self._policy = ask, repository, policy
        self._settings = Settings(ask, repository, wanted, policy, ask_aws=ask_aws)
        self._outage = ""
        """Why GitHub could not be reached; empty while it can be."""

    def steps(self) -> Iterator[SetupStep]:
        """Yield each step as soon as it is finished."""
        for name, check in self._settings.rows():
            step = self._finish(name, check)
            self._settings.verdicts[name] = step.verdict
            yield step

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
            if "upgrade" in error.message.lower() and self._plan_lacks(name, error):
                return environments_missing(name, f"GitHub answered: {error.message}", self._repository)
            return SetupStep(name, SetupVerdict.REFUSED, str(error))

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
        if isinstance(refusal, RefusedError) and self._plan_lacks(step.name, refusal):
            return environments_missing(step.name, f"GitHub answered: {refusal.message}", self._repository)
        if refusal is None and step.name.startswith("env ") and self._repository.is_private:
            message = "GitHub accepted the limit but did not keep it"
            return environments_missing(step.name, message, self._repository)
        reason = str(refusal) if refusal else "GitHub accepted the change but does not show it"
        return replace(step, verdict=SetupVerdict.REFUSED, text=f"{step.text}: {reason}", changes=())

    def _make(self, changes: Sequence[SetupChange | SecretChange]) -> ServiceError | None:
        """Make the changes in their order and stop at the first refusal, which is returned."""
        self._settings.forget_variables()
        for change in changes:
            try:
                if isinstance(change, SecretChange):
                    self._policy.set_secret(change)
                else:
                    request(self._ask, change.method, change.path, change.body)
            except ServiceError as error:
                return error
        return None

    def _plan_lacks(self, name: str, refusal: RefusedError) -> bool:
        """Return whether GitHub's plan lacks environments, as opposed to the login lacking the permission."""
        login = "not accessible" in refusal.message or "admin" in refusal.message.lower()
        lacks = name.startswith("env ") and refusal.status in (403, 404, 422)
        return lacks and self._repository.is_private and not login
