"""What every section of the configuration is made of: the base class and the kinds of values.

The sections themselves are `schema`'s.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MOST = 10**12
"""No count in a configuration can be meant to be larger; what follows would overflow far from its cause."""
LONGEST_TEXT = 4096
"""Characters; longer than any path that a system opens."""
Positive = Annotated[int, Field(gt=0, le=MOST)]
NotNegative = Annotated[int, Field(ge=0, le=MOST)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_TEXT)]


class Section(BaseModel):
    """Base of all sections: frozen, strict types, unknown keys and non-finite numbers refused.

    Validators are built at first use (defer_build), because most programs need only that of the whole.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        defer_build=True,
    )
