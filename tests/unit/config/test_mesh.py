"""The division of processes over the mesh, and what is refused before they start."""

from pathlib import Path
from typing import Any

import pytest

from trainyard.config.load import load_config
from trainyard.config.mesh import MeshShape, mesh_shape, require_processes
from trainyard.config.schema import ComputeConfig
from trainyard.errors import ConfigError


@pytest.mark.parametrize(
    ("compute", "shape"),
    [
        ({"strategy": "single"}, MeshShape()),
        ({"strategy": "ddp"}, MeshShape(replicas=8)),
        ({"strategy": "fsdp"}, MeshShape(shards=8)),
        ({"strategy": "fsdp", "tensor_parallel": 8}, MeshShape(tensor=8)),
        ({"strategy": "hsdp", "replicas": 2, "tensor_parallel": 2}, MeshShape(2, 2, 2)),
    ],
)
def test_every_process_has_a_place(compute: dict[str, Any], shape: MeshShape) -> None:
    assert mesh_shape(ComputeConfig(**compute), 8) == shape


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        ({"tensor_parallel": 3}, "compute.tensor_parallel: 3 does not divide the 8 processes of this run"),
        ({"replicas": 3}, "compute.replicas: 3 does not divide the 8 processes of this run"),
        ({"replicas": 8, "tensor_parallel": 2}, "compute.replicas: 8 does not divide the 4 groups"),
    ],
)
def test_what_cannot_be_shared_out_is_named(compute: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        mesh_shape(ComputeConfig(strategy="hsdp", **compute), 8)


SMOKE = Path(__file__).resolve().parents[3] / "configs" / "smoke.yaml"
HSDP = ["compute.strategy=hsdp", "compute.replicas=2"]


def test_what_every_process_would_refuse_is_refused_before_them() -> None:
    for overrides, processes in (([], 1), (HSDP, 4)):
        require_processes(load_config(SMOKE, overrides).config, processes)
    for overrides, processes, problem in (
        ([], 2, "compute.strategy is single, which is for one process, not for 2"),
        (HSDP, 3, r"compute\.replicas: 2 does not divide the 3 processes"),
    ):
        with pytest.raises(ConfigError, match=problem):
            require_processes(load_config(SMOKE, overrides).config, processes)
