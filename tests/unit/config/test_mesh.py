"""The division of processes over the mesh."""

from typing import Any

import pytest

from trainyard.config.mesh import MeshShape, mesh_shape
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
