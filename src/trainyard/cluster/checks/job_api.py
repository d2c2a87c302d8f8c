"""Check that the cluster serves the API of the job's kind in a version that this program writes."""

from collections.abc import Iterator

from trainyard.cluster.check_definition import Check, Facts
from trainyard.cluster.needed_apis import NeededApi, serves
from trainyard.cluster.snapshot import MissingData
from trainyard.plan.finding import Finding


def judge(facts: Facts) -> Iterator[Finding]:
    groups, resources = facts.snapshot.groups, facts.snapshot.resources
    if isinstance(groups, MissingData):
        yield groups.as_finding()
        return
    served = any(serves(kind.api, resources) for kind in facts.kinds)
    if facts.job.kind in ("", "auto") and not served:
        known = ", ".join(kind.api_kind for kind in facts.kinds)
        yield Finding.error(f"none of {known} is served", _install(facts.kind.api))
        return
    missing = [api for api in facts.kind.apis if not serves(api, resources)]
    for api in missing:
        versions = groups.get(api.group, ())
        offered = [v for v in versions if api.resource in resources.get(f"{api.group}/{v}", ())]
        if offered:
            yield Finding.error(
                f"{api.name} is served in {', '.join(offered)} only, and {api.version} is needed",
                f"install a release of {api.installs} that serves {api.version}",
            )
        else:
            yield Finding.error(f"{api.name} is not served", _install(api))
    if not missing:
        yield Finding.success(", ".join(f"{api.name}/{api.version}" for api in facts.kind.apis))


def _install(api: NeededApi) -> str:
    how = f": aws eks create-addon --addon-name {api.add_on}" if api.add_on else " at a pinned version"
    return f"install {api.installs}{how}"


CHECK = Check("job-api", "the API of the job's kind and its versions", judge, essential=True)
