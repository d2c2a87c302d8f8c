"""Base class and value types of configuration sections. The sections themselves are in `schema`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from trainyard.config.registries import Choice

MOST = 10**12
"""Largest count; larger ones are typing errors and would overflow far from their cause."""
LONGEST_TEXT = 4096
"""Longest text in characters; longer than any path that a system opens."""
Positive = Annotated[int, Field(gt=0, le=MOST)]
NotNegative = Annotated[int, Field(ge=0, le=MOST)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_TEXT)]
Words = Annotated[tuple[Name, ...], Field(strict=False, max_length=1024)]
"""A list of texts. YAML has lists, and a frozen section needs a tuple."""


@dataclass(frozen=True)
class OneOf:
    """Restricts a value to the names in a registry, so that the registry alone has to list them.

    The registry is read when a value is checked or the JSON Schema is made. The meanings of the entries are
    the description of the key.
    """

    entries: Mapping[str, Choice]

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._require_name)

    def __get_pydantic_json_schema__(
        self, _schema: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        meanings = (f"{name}: {entry.meaning}" for name, entry in self.entries.items())
        return {"description": f"{'; '.join(meanings)}.", "enum": list(self.entries), "type": "string"}

    def _require_name(self, value: Any) -> str:
        if isinstance(value, str) and value in self.entries:
            return value
        raise PydanticCustomError(
            "unknown_name", "Input should be one of {names}", {"names": ", ".join(self.entries)}
        )


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
