"""Describe builds for people: the plan, the results on a terminal and in a job summary."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.errors import ConfigError


def require_different_names(names: Sequence[str]) -> None:
    """Raise ConfigError when two images of one call have the same name."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"Two Dockerfiles would make the image {twice[0]}, because an image is named after its folder. "
            "Build one of them in a call of its own, with --image NAME."
        )


def plan_lines(plan: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the planned build, for people."""
    lines = []
    for one in plan:
        tree = " (with uncommitted changes)" if one["dirty"] else ""
        lines += [
            f"  {one['image']:<13} {one['dockerfile']} in {one['context']}, {one['platform']}",
            f"  {'':<13} {one['files']:,} files, {one['bytes'] / 1e6:.1f} MB, tag {one['tag']}",
            f"  {'':<13} commit {one['commit'][:7] or 'unknown'}{tree}",
        ]
        for base in one["unpinned"]:
            lines.append(f"  {'':<13} {base} is not pinned by digest, so every call builds this image")
    return [*lines, "Nothing was built."]


def result_lines(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the results for people."""
    lines = []
    for one in results:
        how = f"built in {_took(one)}" if one["built"] else "already in ECR, nothing was built"
        lines += [f"  {one['image']:<13} {how}", f"  {'':<13} {one['uri']}"]
    return lines


def result_markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the results for a job summary."""
    built = [one for one in results if one["built"]]
    title = "Built, checked and pushed" if built else "Nothing to build: this content is in the registry"
    rows = [
        f"| {one['image']} | `{one['digest'] or one['uri']}` | `{one['tag']}` | "
        f"{_took(one) if one['built'] else 'already there'} |"
        for one in results
    ]
    return "\n".join(
        [f"### ✅ {title}", "", "| image | digest | content | took |", "|---|---|---|---|", *rows, ""]
    )


def _took(result: Mapping[str, Any]) -> str:
    seconds = int(result.get("seconds", 0))
    return f"{seconds // 60}:{seconds % 60:02d}"
