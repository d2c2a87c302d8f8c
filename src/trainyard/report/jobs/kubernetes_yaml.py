"""Kubernetes objects as YAML that people read and `kubectl apply` takes: blocks of text, no anchors."""

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

_SafeDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""libyaml's writer, where PyYAML was built with it."""


class _Dumper(_SafeDumper):  # type: ignore[misc]
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Repeat a value instead of an anchor, which people and some tools read wrongly."""
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def kubernetes_yaml(objects: Iterable[Mapping[str, Any]]) -> str:
    """Return the objects as YAML documents, in their order."""
    text: str = yaml.dump_all(list(objects), Dumper=_Dumper, sort_keys=False, width=2**16)
    return text
