"""A container in which a command can run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A container in which a command can run."""

    namespace: str
    pod: str
    container: str = ""
    """Empty means the only container, or the pod's default."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}" + (f"/{self.container}" if self.container else "")
