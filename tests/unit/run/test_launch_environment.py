"""The meaning of operators' and launchers' variables: every launcher × shape, and every contradiction."""

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import product

import pytest
from tests.cases import each_case

from trainyard.errors import ConfigError
from trainyard.run.launch_environment import (
    NodeLauncher,
    Processes,
    is_first_node,
    launcher_options,
    place_in_run,
)
from trainyard.run.waiting import describe_wait

Environment = dict[str, str]
HOST, PORT = "job-master-0", 23456
MEETING = {"MASTER_ADDR": HOST, "MASTER_PORT": str(PORT)}
PET_MEETING = {f"PET_{name}": value for name, value in MEETING.items()}


def pytorchjob(nodes: int, rank: int, per_node: Processes) -> Environment:
    world = nodes * per_node if isinstance(per_node, int) else nodes
    pet = {"PET_NODE_RANK": str(rank), "PET_NNODES": str(nodes), "PET_NPROC_PER_NODE": str(per_node)}
    return {**MEETING, **PET_MEETING, "WORLD_SIZE": str(world), "RANK": str(rank), **pet}


def old_pytorchjob(nodes: int, rank: int, per_node: Processes) -> Environment:
    return {**MEETING, "WORLD_SIZE": str(nodes), "RANK": str(rank)}


def elastic(nodes: int, rank: int, per_node: Processes) -> Environment:
    return {
        "PET_RDZV_ENDPOINT": f"{HOST}:{PORT}",
        "PET_RDZV_BACKEND": "c10d",
        "PET_NNODES": f"{nodes}:{nodes}",
        "PET_NPROC_PER_NODE": str(per_node),
    }


def trainjob(nodes: int, rank: int, per_node: Processes) -> Environment:
    pet = {"PET_NNODES": str(nodes), "PET_NPROC_PER_NODE": str(per_node), "PET_NODE_RANK": str(rank)}
    return {**pet, **PET_MEETING, "JOB_COMPLETION_INDEX": str(rank)}


def jobset(nodes: int, rank: int, per_node: Processes) -> Environment:
    own = {"NNODES": str(nodes), "NPROC_PER_NODE": str(per_node), "JOB_COMPLETION_INDEX": str(rank)}
    return {**MEETING, **own}


def hyperpod(nodes: int, rank: int, per_node: Processes) -> Environment:
    return {"NNODES": str(nodes), "NPROC_PER_NODE": str(per_node), "AGENT_PORT": "8080"}


OPERATORS: dict[str, Callable[[int, int, Processes], Environment]] = {
    function.__name__: function
    for function in (pytorchjob, old_pytorchjob, elastic, trainjob, jobset, hyperpod)
}
SAYS_NO_PROCESSES = {"old_pytorchjob"}
NUMBERED_LATER = {"elastic", "hyperpod"}
"""Their nodes learn their number from the rendezvous or the agent."""
NODES = (1, 2, 3, 17)
PER_NODE: tuple[Processes, ...] = ("auto", 1, 8)


def node_of(environment: Mapping[str, str], processes: int | None = None) -> NodeLauncher:
    place = place_in_run(environment, processes, has_agent=True)
    assert place is not None
    return place


def test_each_operators_variables_give_the_shape_of_its_job() -> None:
    cases: Iterator[tuple[str, int, Processes, bool]] = product(OPERATORS, NODES, PER_NODE, (False, True))
    for operator, nodes, per_node, is_last in cases:
        rank = nodes - 1 if is_last else 0
        node = node_of(OPERATORS[operator](nodes, rank, per_node))
        assert node.nodes == nodes
        assert node.processes == (1 if operator in SAYS_NO_PROCESSES else per_node)
        if operator == "hyperpod":
            assert node.agent == ("hyperpodrun", "--server-port=8080")
        elif nodes == 1:
            assert node.rank == 0
            assert launcher_options(node, 4, grace_seconds=9) == ["--standalone", "--nproc-per-node=4"]
        elif operator in NUMBERED_LATER:
            assert node.rank is None
        else:
            met = (f"--node-rank={rank}", f"--master-addr={HOST}", f"--master-port={PORT}")
            assert (node.rank, node.rendezvous) == (rank, met)


def test_the_command_line_replaces_auto_and_never_contradicts_a_number() -> None:
    for (operator, made), asked in product(OPERATORS.items(), (1, 2, 8)):
        assert node_of(made(2, 1, "auto"), asked).processes == asked
        if operator in SAYS_NO_PROCESSES:
            continue
        assert node_of(made(2, 1, asked), asked).processes == asked
        with pytest.raises(ConfigError, match=f"--nproc-per-node {asked} contradicts .*NPROC_PER_NODE="):
            place_in_run(made(2, 1, asked + 1), asked, has_agent=True)


def test_the_options_say_where_the_nodes_meet() -> None:
    common = ["--nnodes=3", "--nproc-per-node=8"]
    fixed = ["--node-rank=2", f"--master-addr={HOST}", f"--master-port={PORT}"]
    assert launcher_options(node_of(trainjob(3, 2, 8)), 8, grace_seconds=9) == [*common, *fixed]
    met = ["--rdzv-backend=c10d", f"--rdzv-endpoint={HOST}:{PORT}"]
    assert launcher_options(node_of(elastic(3, 2, 8)), 8, grace_seconds=9) == [*common, *met]
    stop = ["--shutdown-signal=SIGTERM", "--shutdown-timeout=9", "--server-port=8080"]
    assert launcher_options(node_of(hyperpod(3, 2, 8)), 8, grace_seconds=9) == [*common, *stop]


@pytest.mark.parametrize(
    "environment", [{}, {"MASTER_ADDR": HOST}, {"JOB_COMPLETION_INDEX": "3"}, {"RANK": ""}]
)
def test_without_a_number_of_nodes_a_process_is_alone(environment: Environment) -> None:
    assert place_in_run(environment) is None
    assert place_in_run(environment, 4) == NodeLauncher(1, 0, 4)


def worker() -> Environment:
    return {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": HOST}


def test_a_worker_is_one_in_every_operators_pod() -> None:
    for around in ({}, *(made(2, 1, 8) for made in OPERATORS.values())):
        assert place_in_run(around | worker(), 8) is None


NUMBERS = {
    "PET_NNODES": pytorchjob,
    "PET_NODE_RANK": trainjob,
    "PET_NPROC_PER_NODE": trainjob,
    "PET_MASTER_PORT": trainjob,
    "WORLD_SIZE": old_pytorchjob,
    "RANK": old_pytorchjob,
    "JOB_COMPLETION_INDEX": jobset,
}


def test_each_number_that_is_none_is_refused_by_its_name() -> None:
    for name, value in product(NUMBERS, ("two", "-1", "1.5", "1e3", "9" * 9, "²")):
        operator = without(NUMBERS[name](2, 1, 8), "MASTER_PORT", "PET_MASTER_PORT")
        if name == "RANK":
            operator = without(operator, "PET_NODE_RANK")
        with pytest.raises(ConfigError, match=f"{name}.* is {value}.*Nothing was started"):
            place_in_run(operator | {name: value})


def without(environment: Environment, *names: str) -> Environment:
    return {name: value for name, value in environment.items() if name not in names}


JOB = pytorchjob(4, 1, 8)
CONTRADICTIONS: dict[str, tuple[Environment, str]] = {
    "rank beyond": (JOB | {"RANK": "4", "PET_NODE_RANK": "4"}, "node 4, but the nodes are numbered 0 to 3"),
    "index beyond": (jobset(2, 2, 1), "node 2, but the nodes are numbered 0 to 1"),
    "two ranks": (JOB | {"RANK": "2"}, "PET_NODE_RANK=1 and RANK=2 contradict"),
    "two addresses": (JOB | {"MASTER_ADDR": "other"}, "PET_MASTER_ADDR=.* and MASTER_ADDR=other contradict"),
    "two ports": (JOB | {"MASTER_PORT": "1"}, "PET_MASTER_PORT=23456 and MASTER_PORT=1 contradict"),
    "two counts": (JOB | {"NNODES": "3"}, "PET_NNODES=4 and NNODES=3 contradict"),
    "a range": (elastic(2, 0, 1) | {"PET_NNODES": "2:3"}, "PET_NNODES=2:3: a run keeps its number of nodes"),
    "no address": (without(JOB, "MASTER_ADDR", "PET_MASTER_ADDR"), "no rendezvous address"),
    "no rank": (without(JOB, "RANK", "PET_NODE_RANK"), "the number of this node is not set"),
    "no count": ({"RANK": "1", "MASTER_ADDR": HOST}, "node 1, but the number of nodes is not set"),
    "an index of several, one node": (
        {"PET_NNODES": "1", "JOB_COMPLETION_INDEX": "1", "MASTER_ADDR": HOST},
        "node 1, but the nodes are numbered 0 to 0",
    ),
    "an index, no count": ({"JOB_COMPLETION_INDEX": "1", "MASTER_ADDR": HOST}, "would train alone"),
    "no agent": (hyperpod(2, 0, 8), "needs hyperpodrun in the image"),
}


def test_what_contradicts_itself_is_refused() -> None:
    for environment, said in CONTRADICTIONS.values():
        with pytest.raises(ConfigError, match=said) as refused:
            place_in_run(environment)
        assert str(refused.value).endswith("Nothing was started.")


def test_the_log_says_which_node_this_is_and_where_the_others_are() -> None:
    assert node_of(trainjob(3, 2, 8)).describe(8) == (
        f"3 nodes of 8 processes, this is node 2 (--node-rank=2 --master-addr={HOST} --master-port={PORT})"
    )
    assert (
        node_of(elastic(3, 2, 1)).describe(1)
        == f"3 nodes of 1 process (--rdzv-backend=c10d --rdzv-endpoint={HOST}:{PORT})"
    )
    assert NodeLauncher(1, 0, 2).describe(2) == "2 processes"


@each_case(
    ("environment", "first"),
    [
        ({}, True),
        ({"PET_NODE_RANK": "0", "RANK": "0"}, True),
        ({"PET_NODE_RANK": "1", "RANK": "1"}, False),
        ({"RANK": "3", "WORLD_SIZE": "4"}, False),
        ({"JOB_COMPLETION_INDEX": "0"}, True),
        ({"JOB_COMPLETION_INDEX": "2"}, False),
        ({"TRAINYARD_POD": "llama-pods-0"}, True),
        ({"TRAINYARD_POD": "llama-pods-11"}, False),
        ({"TRAINYARD_POD": "llama-head-x7k2p"}, True),
    ],
)
def test_the_first_node_is_known_by_what_the_operator_sets(environment: dict[str, str], first: bool) -> None:
    assert is_first_node(environment) is first


def test_a_wait_is_told_again_and_again_and_nothing_after_it() -> None:
    said: list[str] = []
    with describe_wait("the other nodes", 3660, log=said.append, every=0.05):
        time.sleep(0.6)
    lines = len(said)
    assert lines >= 3
    assert all(line.startswith("waiting for the other nodes, for 0:0") for line in said)
    assert said[0].endswith(" of at most 1:01:00")
    time.sleep(0.2)
    assert len(said) == lines
