"""What a plan says that it cannot prove is what `prove` answers on the best records of such a run."""

import itertools
from dataclasses import replace

from tests.unit.proof.test_joining_network import facts_of
from tests.unit.proof.test_proof import FINISHED, SAVED, SETTINGS, STARTED, STEPS, Found, judge, proven_run

from trainyard.proof.proof import Proof
from trainyard.proof.reachable_parts import PlannedRun, unreachable_parts
from trainyard.watch.network_record import EVENT, NetworkWatch
from trainyard.watch.network_verdict import Expectation


def best_proof(run: PlannedRun, *, is_program: bool) -> Proof:
    if not run.is_recorded:
        return judge({}, [], [], Found(None, checkpoints={}))
    size = run.nodes * run.processes
    facts = {**proven_run(), "hardware": {"world_size": size, "local_world_size": run.processes}}
    if is_program:
        program = {"command": ["python", "train.py"]}
        facts |= {"recipe": "command", "program": program, "program_sha256": "e" * 64}
    seen = NetworkWatch(Expectation()).event([facts_of("direct", nodes=run.nodes, processes=run.processes)])
    network = [{"event": EVENT, **seen}] if run.keeps_network_log else []
    settings = {**SETTINGS, "compute": {"network": run.network}, "program": {"steps": STEPS}}
    found = Found() if run.store else Found(None, checkpoints={})
    return judge(facts, events=[STARTED, *network, SAVED, FINISHED], found=found, settings=settings)


def test_a_plan_states_what_the_proof_will_say_of_its_run_and_a_change_that_helps() -> None:
    wrong = []
    flags = itertools.product((True, False), repeat=2)
    places = itertools.product((1, 2), (1, 2), ("auto", "efa", "tcp"), ("s3://runs", ""))
    for is_program, (nodes, processes, network, store), (is_recorded, has_log) in itertools.product(
        (True, False), places, flags
    ):
        run = PlannedRun(nodes, processes, network, store, is_recorded, has_log)
        failing = [part.name for part in best_proof(run, is_program=is_program).failing]
        parts = unreachable_parts(run)
        if [part.name for part in parts] != failing:
            wrong.append(f"{run}: {parts}, not {failing}")
        changes = {"compute.network=tcp": {"network": "tcp"}, "name a store": {"store": "file:///a"}}
        for part in parts:
            for words, change in changes.items():
                holds = (
                    part.name
                    in best_proof(
                        replace(run, **change),  # type: ignore[arg-type]
                        is_program=is_program,
                    ).holding
                )
                if part.fix.startswith(words) is not holds:
                    wrong.append(f"{run}: {part} with {change}")
    assert not wrong, "\n".join(wrong[:20])
