"""The result of `trainyard image lint` as lines for people, and the declared versions as plain data."""

from collections.abc import Mapping
from typing import Any

from trainyard.image.conflict.declared_versions import DeclaredVersions
from trainyard.image.conflict.version_facts import version_text
from trainyard.image.context.dockerfile import is_stated


def declared_record(declared: DeclaredVersions) -> dict[str, str]:
    """Return the versions that were found; unknown ones are left out."""
    torch = declared.torch
    found = {
        "base": declared.base.image if is_stated(declared.base.image) else "",
        "python": version_text(declared.base.python),
        "torch": torch.text if torch else version_text(declared.base.torch),
        "cuda": version_text(declared.cuda or declared.base.cuda),
        "nccl": version_text(declared.nccl),
        "efa_installer": version_text(declared.efa_installer),
        "aws_ofi_nccl": version_text(declared.efa_plugin),
    }
    return {key: value for key, value in found.items() if value}


def lint_lines(data: Mapping[str, Any]) -> list[str]:
    """Return the findings for people, each with its reason and its remedy."""
    known, read = data["declared"], data["read"]
    versions = ", ".join(f"{key} {known[key]}" for key in ("torch", "cuda", "python", "nccl") if key in known)
    lines = [
        f"  read          {read['instructions']} instructions, {read['installs']} install commands",
        f"  base          {known.get('base', 'unknown')}",
        f"  versions      {versions or 'none stated'}",
    ]
    lines += [f"  unknown       {one}" for one in data["unknown"]]
    lines += [f"  not checked   {one}" for one in data["not_checked"]]
    lines += data["difference"].splitlines()
    lines += [f"  driver        {data['driver']}"] if data["driver"] else []
    for finding in data["findings"]:
        place = finding["file"] + (f":{finding['line']}" if finding["line"] else "")
        lines += [f"{place}: {finding['severity']}: {finding['what']}", f"    {finding['why']}"]
        lines.append(f"    {finding['remedy']}" + (" (--fix does it)" if finding["fixable"] else ""))
    if "base" in known and data["base"]["proposed"].split(":")[0] not in data["base"]["found"]:
        lines.append(f"  better base   {data['base']['proposed']}: {data['base']['reason']}")
    errors = sum(finding["severity"] == "error" for finding in data["findings"])
    others = len(data["findings"]) - errors
    partly = data["unknown"] or data["not_checked"]
    if data["findings"]:
        lines.append(f"  {errors} will break{' in what is stated' * bool(partly)}, {others} to consider")
    else:
        lines.append("  no problem in what is stated" if partly else "  nothing would break")
    return lines
