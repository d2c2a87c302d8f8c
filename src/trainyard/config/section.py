"""Base class and value types of configuration sections. The sections themselves are in `schema`."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MOST = 10**12
"""Largest count; larger ones are typing errors and would overflow far from their cause."""
LONGEST_TEXT = 4096
"""Longest text in characters; longer than any path that a system opens."""
Positive = Annotated[int, Field(gt=0, le=MOST)]
NotNegative = Annotated[int, Field(ge=0, le=MOST)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_TEXT)]


class Section(BaseModel):
    """Base of all sections: frozen, strict types, unknown keys and non-finite numbers refused.

    Validators are built at first use (defer_build), because most programs need only the one of `Config`.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        defer_build=True,
    )
