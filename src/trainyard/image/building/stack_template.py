"""The CloudFormation template of image builds: check its parameters, and write it for one account.

    template, parameters, account  ──>  ConfigError with every wrong flag | the template to deploy

Nothing here calls AWS. The template is infrastructure/cloudformation.yaml.
"""

import copy
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from trainyard.config.yaml_reader import parse_yaml
from trainyard.errors import ConfigError

_IDENTIFIERS = ("RepositoryName", "BucketName", "Bucket")
MORE = "More"
"""The beginning of the logical names of further repositories, which only a written template has."""


def read_template(text: str) -> dict[str, Any]:
    """Return the template as an object."""
    found: dict[str, Any] = parse_yaml(text, "the template")
    return found


def check_parameters(template: Mapping[str, Any], given: Mapping[str, str], flags: Mapping[str, str]) -> None:
    """Raise ConfigError that names the flag of every value that the template refuses."""
    problems = []
    for name, value in given.items():
        rule, flag = template["Parameters"][name], f"--{flags[name]}"
        if "AllowedValues" in rule and value not in map(str, rule["AllowedValues"]):
            problems.append(f"{flag}: {value} is not one of {', '.join(map(str, rule['AllowedValues']))}")
        if "MinValue" in rule and not rule["MinValue"] <= int(value) <= rule["MaxValue"]:
            problems.append(f"{flag}: {value} is not from {rule['MinValue']} to {rule['MaxValue']:,}")
        parts = value.split(",") if rule["Type"] == "CommaDelimitedList" else [value]
        # `$` of Python also matches before a line break at the end, that of CloudFormation does not.
        problems += [
            f"{flag}: {each[:80]!r} does not fit {rule['AllowedPattern']} ({rule['Description']})"
            for each in parts
            if not re.search(rule.get("AllowedPattern", ""), each, re.ASCII) or "\n" in each
        ]
    if problems:
        count = f"{len(problems)} error{'s' * (len(problems) > 1)}. Nothing was started."
        raise ConfigError("\n".join([*problems, count]))


def write_template(template: Mapping[str, Any], values: Mapping[str, str], more: Iterable[str]) -> str:
    """Return the template as JSON, in which resources that are retained have names without functions.

    CloudFormation imports a resource that exists, such as a bucket that a deleted stack retained, only by
    such a name. `values` are the parameters and the pseudo parameters; `more` are names of further
    repositories, each with its cache.
    https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/import-resources-automatically.html
    """
    written = copy.deepcopy(dict(template))
    resources = written["Resources"]
    for name in more:
        for kind, end in (("ImageRepository", ""), ("CacheRepository", "-cache")):
            resource = copy.deepcopy(resources[kind])
            resource["Properties"]["RepositoryName"] = {"Fn::Sub": f"${{Project}}/{name}{end}"}
            logical = re.sub("[^a-z0-9]", lambda found: f"x{ord(found[0]):02x}", name)
            resources[f"{MORE}{logical}{kind}"] = resource
    for resource in resources.values():
        for key in set(_IDENTIFIERS) & resource["Properties"].keys():
            if resource.get("DeletionPolicy") == "Retain":
                name = resource["Properties"][key]
                text = f"${{{name['Ref']}}}" if "Ref" in name else name["Fn::Sub"]
                filled = re.sub(r"\$\{([A-Za-z:]+)\}", lambda found: values[found[1]], text)
                resource["Properties"][key] = filled
    return json.dumps(written)


def more_repositories(template: Mapping[str, Any]) -> list[str]:
    """Return the names of the further repositories in a written template."""
    return [
        resource["Properties"]["RepositoryName"].partition("/")[2]
        for name, resource in template["Resources"].items()
        if name.startswith(MORE) and name.endswith("ImageRepository")
    ]
