"""The training workflow against the scripts it calls and against `make train`."""

import inspect
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from tests.workflows.conftest import CALLER, PIPELINE, PIPELINE_JOB, ROOT, help_of, shell

from trainyard.commands import step_plan
from trainyard.commands.run import RunRequest, pipeline_of
from trainyard.config.load import load_config
from trainyard.github.job_times import STORING_MINUTES
from trainyard.github.run_plan import DispatchInputs, resolve
from trainyard.github.target import AS_SET_UP, PLACES
from trainyard.pipeline import Step
from trainyard.run.segment import Handover, Segment, first_segment

CALL = re.compile(r"scripts/(\w+)\.py(?P<arguments>[^\n]*)")


def calls(text: str) -> list[tuple[str, list[str]]]:
    """Script name and words of each call in a shell text."""
    joined = re.sub(r"\\\n\s*", " ", text)
    return [(found[1], shlex.split(found["arguments"])) for found in CALL.finditer(joined)]


def pipeline_steps() -> list[Step]:
    """The steps of `trainyard run` for the smoke test."""
    request = RunRequest(config=ROOT / "configs" / "smoke.yaml", changes=["training.max_steps=5"])
    found = replace(pipeline_of(request), notifies=True)
    return [*found.steps(), *found.notify("succeeded")]


def test_trainyard_run_takes_the_steps_of_the_pipeline_in_their_order_with_values_that_they_take() -> None:
    steps = pipeline_steps()
    names = ["machine", "readiness", "prepare", "claim", "train", "store", "prove", "report", "notify"]
    assert [step.name for step in steps] == names
    for step in steps:
        inspect.signature(step.apply).bind(**step.values)


def test_every_called_script_exists_and_knows_its_flags(shipped: Any) -> None:
    for step in shipped.steps():
        for script, words in calls(step.get("run", "")):
            assert (ROOT / "scripts" / f"{script}.py").is_file(), script
            (module,) = re.findall(r"commands\.(\w+) import", (ROOT / "scripts" / f"{script}.py").read_text())
            for flag in (word for word in words if word.startswith("--")):
                assert re.search(rf"{flag.partition('=')[0]}\b", help_of(module)), f"{script}.py {flag}"
            if any("--set=" in word for word in words):
                assert "--set" in help_of(module)


def test_only_the_job_that_trains_waits_for_the_gpu() -> None:
    assert [name for name, job in PIPELINE.jobs.items() if "concurrency" in job] == ["train"]
    assert "concurrency" not in PIPELINE.content | CALLER.content
    others = {job["runs-on"] for name, job in PIPELINE.jobs.items() if name != "train"}
    assert others == {"ubuntu-24.04"}


def test_a_dispatch_offers_what_a_plan_reads() -> None:
    inputs = CALLER.content["on"]["workflow_dispatch"]["inputs"]
    names = ["runner", "config", "set", "epochs", "resume", "dry_run", "continues"]
    assert list(inputs) == names
    assert inputs["runner"]["options"] == [AS_SET_UP, *(str(each) for each in PLACES if each != "gpu-runner")]
    assert inputs["runner"]["default"] == AS_SET_UP
    code = Path(str(step_plan.__file__)).read_text()
    assert all(f'given.get("{name}"' in code for name in names), "an input that nobody reads"


def test_the_next_segment_is_dispatched_with_an_input_that_each_caller_has() -> None:
    handover = Handover(Segment("1", 1, 1, "0" * 40), DispatchInputs("x.yaml").inputs(), "s3://a", 3)
    inputs = handover.inputs_of(handover.segment.next(step=1), manifest="run-1-manifest.json")
    example = yaml.load((ROOT / "docs" / "examples" / "training.yml").read_text(), Loader=yaml.BaseLoader)
    for content in (CALLER.content, example):
        assert inputs.keys() <= content["on"]["workflow_dispatch"]["inputs"].keys()


def test_the_example_asks_for_what_the_called_jobs_may_do_and_gives_inputs_that_there_are() -> None:
    text = (ROOT / "docs" / "examples" / "training.yml").read_text()
    job = yaml.load(text, Loader=yaml.BaseLoader)["jobs"]["train"]
    granted = {"contents": "write", "id-token": "write", "actions": "write", "checks": "read"}
    assert job["permissions"] == granted
    for called in PIPELINE.jobs.values():
        for scope, level in called["permissions"].items():
            assert granted[scope] in (level, "write"), f"{scope}: GitHub refuses a call that grants less"
    declared = PIPELINE.content["on"]["workflow_call"]
    assert job["with"].keys() <= declared["inputs"].keys()
    assert job["secrets"].keys() <= declared["secrets"].keys()


def uploads(job: dict[str, Any]) -> list[dict[str, Any]]:
    return [s for s in job["steps"] if s.get("uses", "").startswith("actions/upload-artifact@")]


def test_results_are_kept_for_thirty_days_even_of_a_failed_run() -> None:
    [upload] = uploads(PIPELINE_JOB)
    assert "always()" in upload["if"]
    assert int(upload["timeout-minutes"]) <= STORING_MINUTES / 2


def test_the_files_are_short_and_have_no_logic() -> None:
    """A reader of ten minutes can say what happens when the runner dies."""
    action = (ROOT / "action.yml").read_text()
    lengths = [len(text.splitlines()) for text in (PIPELINE.text, action, CALLER.text)]
    assert lengths[0] <= 120 and lengths[1] <= 120 and lengths[2] <= 40, lengths
    for job in PIPELINE.jobs.values():
        for condition in (str(place.get("if", "")) for place in [job, *job["steps"]]):
            assert condition.count("&&") <= 1 and "||" not in condition, condition


def test_the_set_up_notes_its_start_and_removes_what_is_not_of_the_commit(tmp_path: Path) -> None:
    checkout, step = PIPELINE_JOB["steps"][:2]
    assert checkout["with"]["clean"] == "false"
    shell("git init --quiet && echo kept > .gitignore && touch kept gone", tmp_path)
    set_up = "false | true && touch never || touch ran"
    shell(step["run"], tmp_path, GITHUB_ENV=str(tmp_path / "kept"), SETUP=set_up)
    assert re.fullmatch(r"TRAINYARD_JOB_STARTED=\d+\n", (tmp_path / "kept").read_text())
    assert {path.name for path in tmp_path.iterdir()} == {".git", "kept", "ran"}


def test_the_plan_has_every_value_that_the_workflow_reads_of_it() -> None:
    variables = {"GITHUB_RUN_ID": "1", "GITHUB_RUN_NUMBER": "1", "GITHUB_SHA": "0" * 40}
    config = load_config(ROOT / "configs" / "training_configuration.yaml").config
    plan = resolve(DispatchInputs("x.yaml"), config, first_segment(variables), variables=variables).job_plan()
    used = set(re.findall(r"fromJSON\(needs\.plan\.outputs\.plan\)\.(\w+)", PIPELINE.text))
    assert used <= plan.keys()
    assert len(used) >= 6


def test_only_the_step_that_trains_has_the_key_and_the_secrets_of_the_program() -> None:
    holders: dict[str, set[str]] = {}
    for job in PIPELINE.jobs.values():
        for step in job["steps"]:
            for secret in re.findall(r"secrets\.(\w+)", str(step)):
                holders.setdefault(secret, set()).add(step["with"]["step"])
    assert holders["TRAINYARD_SIGNING_KEY"] == holders["PROGRAM_ENV"] == {"action"}
    assert holders["SLACK_BOT_TOKEN"] == holders["SLACK_WEBHOOK_URL"] == {"action", "wait", "notify"}


def test_only_a_message_and_a_copy_decide_nothing() -> None:
    quiet = [step["name"] for step in PIPELINE.steps() if "continue-on-error" in step]
    assert quiet == ["Keep report and records for 30 days", "Wait for 15 minutes"]


def test_what_can_change_a_result_starts_a_run_and_a_pin_of_an_action_does_not() -> None:
    push = CALLER.content["on"]["push"]
    assert push["branches"] == ["**", "!gh-readonly-queue/**"]
    assert {"src/**", "scripts/**", "configs/**", "requirements-training.txt"} <= set(push["paths"])
    assert not any(".github" in path for path in push["paths"])


def test_every_concurrency_of_an_example_loses_no_run() -> None:
    """Without `queue: max` a third run cancels the second, and no job runs that could tell anybody."""
    for path in (ROOT / "docs" / "examples").glob("*.yml"):
        content = yaml.load(path.read_text(), Loader=yaml.BaseLoader)
        places = [content, *content.get("jobs", {}).values()]
        groups = [place["concurrency"] for place in places if "concurrency" in place]
        assert all(group.get("queue") == "max" for group in groups if group["group"] == "training"), path.name
