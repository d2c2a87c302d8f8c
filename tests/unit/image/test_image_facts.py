"""The tool that renews the tables of image lint, on pages of the shape that the public ones have."""

import datetime

import pytest
from write_image_facts import add_builds, add_containers, add_toolkits

from trainyard.errors import ServiceError

TODAY = datetime.date(2027, 1, 5)
RELEASE = """\
| PyTorch version | Python | C++ | Stable CUDA | Experimental CUDA | Stable ROCm |
| --- | --- | --- | --- | --- | --- |
| 2.98 | >=3.10, <=(3.15, 3.15t experimental) | C++20 | CUDA 12.6, CUDA 13.0 | CUDA 13.2 | ROCm 7.2 |
"""
MATRIX = """\
| 27.02 | trtllm | Python 3.12.3  | 2.97.0a0+b4e4.nv27.1 | 10.1 | 1.2 | 13.1.0.036 | 590.44.01 |
| 27.02 | s:27.02-vllm-python-py3 | Python 3.12.3  | 0.24.0+092c.nv27.2 | 13.8.1.009 | 615.43.02 |
| 27.01 | s:27.01-vllm-python-py3 | Python 3.12.3  | 0.24.0+092c.nv27.1| 13.8.0.035 | 610.43.02 |
"""


def test_rows_that_a_source_has_and_a_table_lacks_are_added_once() -> None:
    torch = add_builds('- torch: "2.98"\n  pypi_cuda: "13.0"\n', RELEASE)
    assert torch == '- torch: "2.98"\n  cuda: ["12.6", "13.0", "13.2"]\n  pypi_cuda: "13.0"\n'
    containers = add_containers("rows:\n- image: ubuntu\n", MATRIX, TODAY)
    first = (
        '- image: nvcr.io/nvidia/pytorch\n  tag: "27.01"\n  torch: "2.97"\n  cuda: "13.8"\n  python: "3.12"\n'
    )
    assert first in containers
    assert 'tag: "27.02"\n  cuda: "13.8"\n' in containers
    cuda = add_toolkits("rows:\n", MATRIX, TODAY)
    assert '- toolkit: "13.8"\n  release: "13.8.1"\n  bundled_driver: "615.43.02"\n' in cuda
    again = (
        add_builds(torch, RELEASE),
        add_containers(containers, MATRIX, TODAY),
        add_toolkits(cuda, MATRIX, TODAY),
    )
    assert again == (torch, containers, cuda)


def test_a_source_that_has_no_matrix_any_more_is_named() -> None:
    with pytest.raises(ServiceError, match=r"RELEASE\.md has no matrix"):
        add_builds("", "<html>")
    with pytest.raises(ServiceError, match=r"compatibility\.md has no matrix"):
        add_containers("", "<html>", TODAY)
