"""trainyard watch on runs that train, have ended or hang, and on a job of a cluster."""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.gateways.kubernetes.exec_server import ExecServer, exec_server
from tests.unit.gateways.kubernetes.memory_cluster import write_kubeconfig
from tests.unit.jobs.plans import plan
from tests.unit.jobs.state.shapes import condition, job, pod

from trainyard.command import output
from trainyard.commands import watch as watch_command
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_identity, write_outcome
from trainyard.run.rank_times import write_rank_time
from trainyard.run.records import RecordWriter, append_event

Json = dict[str, Any]
RECORDED = Path(__file__).parents[1] / "fixtures" / "nvidia" / "h200-580.159.04" / "q.xml"
JOBS = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs"
SPACE = "/api/v1/namespaces/team"
BUSY = (("<used>0 MiB", "<used>61000 MiB"), ("<gpu_util>0 %", "<gpu_util>97 %"))


def make_run(
    path: Path, *, device: str = "cpu", age: float = 2.0, rows: int = 40, **more: Any
) -> RunDirectory:
    """A run whose newest row is `age` seconds old."""
    run = RunDirectory(path)
    run.create()
    hardware = {"device": device, "world_size": 1, "local_world_size": 1}
    facts = {"hardware": hardware, "plan": {"steps": 4000}, **more}
    write_identity(run.run_file, "20261120-214501-7c1f", facts)
    start = time.time() - age - 3 * rows
    record = json.loads(run.run_file.read_text()) | {"created": start - 30}
    run.run_file.write_text(json.dumps(record))
    append_event(run.events_file, "started", step=0, time=start - 20)
    writer = RecordWriter(run.metrics_file)
    for index in range(rows):
        moment, step = start + 3 * (index + 1), 10 * (index + 1)
        writer.write({"step": step, "loss": 3 - index / 40, "tokens_per_second": 4.1e5, "time": moment})
    writer.close()
    append_event(run.events_file, "checkpoint_saved", step=10 * rows, time=time.time() - age)
    return run


@contextmanager
def trained_here(run: RunDirectory) -> Iterator[None]:
    """This process holds the lock of the run, as its trainer does."""
    with (run.path / ".lock").open("w") as file:
        file.write(json.dumps({"pid": os.getpid()}))
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts an nvidia-smi on PATH that gives the recorded answer with these replacements."""

    def install(*replaced: tuple[str, str]) -> None:
        answer = RECORDED.read_text()
        for before, after in replaced:
            assert before in answer
            answer = answer.replace(before, after, 1)
        (tmp_path / "answer.xml").write_text(answer)
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\ncat '{tmp_path}/answer.xml'\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    return install


@pytest.fixture
def watch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: str | Path) -> tuple[int, str]:
        code = watch_command.main([str(word) for word in words])
        return code, capsys.readouterr().out

    return run


Watch = Callable[..., tuple[int, str]]
Smi = Callable[..., None]


def test_a_run_that_trains_on_a_cpu_is_healthy(tmp_path: Path, watch: Watch) -> None:
    run = make_run(tmp_path / "a run")
    with trained_here(run):
        code, text = watch(run.path, "--once")
    assert code == 0
    lines = text.splitlines()
    assert lines[0].startswith("run 20261120-214501-7c1f · running · ")
    assert lines[1].startswith("  step 400/4,000   loss 2.02 (−0.25 in 100)   410 k tok/s")
    assert "checkpoint 400, " in text
    assert lines[-1] == "  health    ok"
    assert max(map(len, lines)) < 80
    code, text = watch(run.path, "--once", "--json")
    assert (code, json.loads(text)["unknown"]) == (1, ["its process: the run does not train on this machine"])


@pytest.mark.parametrize(("status", "code"), [("succeeded", 0), ("stopped", 0), ("failed", 1), (None, 1)])
def test_a_run_that_has_ended_is_as_healthy_as_its_end(
    tmp_path: Path, watch: Watch, status: str | None, code: int
) -> None:
    run = make_run(tmp_path / "run", age=86400)
    if status:
        write_outcome(run.run_file, {"status": status, "exit_code": 0, "reason": "the reason"})
    answer, text = watch(run.path)
    assert answer == code, text
    assert (status or "interrupted") in text


def test_a_run_that_hangs_is_not_over_and_not_healthy(tmp_path: Path, watch: Watch) -> None:
    run = make_run(tmp_path / "run", age=1200)
    with trained_here(run):
        code, text = watch(run.path, "--once", "--json")
    look = json.loads(text)
    assert (code, look["health"], [alert["rule"] for alert in look["alerts"]]) == (1, "unhealthy", ["hung"])


def test_a_gpu_run_is_healthy_only_where_its_gpus_are_known(tmp_path: Path, watch: Watch, smi: Smi) -> None:
    run = make_run(tmp_path / "run", device="cuda:0")
    with trained_here(run):
        smi(*BUSY)
        code, text = watch(run.path, "--once")
        assert code == 0, text
        assert "1 GPU · 97 % busy · 64 of 150.8 GB · at most 39 °C" in text
        smi(*BUSY, ("<remapped_row_failure>No", "<remapped_row_failure>Yes"))
        code, text = watch(run.path, "--once")
        assert code == 1
        assert "GPU 0: its memory has no spare rows left" in text


def test_a_missing_tool_is_unknown_and_never_healthy(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", device="cuda:0")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with trained_here(run):
        code, text = watch(run.path, "--once", "--json")
    assert (code, json.loads(text)["unknown"]) == (1, ["the GPUs: nvidia-smi is missing"])
    code, text = watch(run.path, "--once", "--json")
    assert (code, json.loads(text)["unknown"]) == (1, ["the GPUs: the run does not train on this machine"])


def test_the_cost_is_the_price_on_record_or_the_stated_one(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", instance_type="p5.48xlarge")
    _, text = watch(run.path, "--once", "--json")
    look = json.loads(text)
    assert look["usd"] == pytest.approx(look["goodput"]["total"] / 3600 * 55.04, rel=0.01)
    assert look["usd_expected"] > 5 * look["usd"]
    assert look["price_source"] == "1 × p5.48xlarge on demand, prices of 2026-07-20"
    monkeypatch.setenv("TRAINYARD_USD_PER_HOUR", "10")
    _, text = watch(run.path, "--once", "--json")
    look = json.loads(text)
    assert (look["usd_per_hour"], look["price_source"]) == (10, "TRAINYARD_USD_PER_HOUR")


def test_in_a_log_each_alert_is_one_line_and_its_end_another(
    tmp_path: Path, watch: Watch, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run")
    said: list[str] = []
    monkeypatch.setattr(output, "announce", lambda phase, text, *_: said.append(f"{phase}: {text}"))

    def pause(_seconds: float) -> None:
        looks = sum(line.startswith("watch") for line in said)
        row: Json = {"step": 400 + looks, "loss": "nan" if looks < 3 else 2.0, "time": time.time()}
        writer = RecordWriter(run.metrics_file)
        writer.write(row)
        writer.close()
        if looks == 4:
            write_outcome(run.run_file, {"status": "succeeded", "exit_code": 0})

    monkeypatch.setattr(time, "sleep", pause)
    code, text = watch(run.path)
    assert code == 0
    assert [line for line in said if line.startswith("health")] == [
        "health: the loss is nan", "health: over: the loss is nan",
    ]  # fmt: skip
    assert said[0].startswith("watch: running, step 400/4,000, loss 2.02")
    assert text.startswith("run 20261120-214501-7c1f · succeeded")


def test_the_verdict_on_the_network_is_that_of_the_newest_segment(tmp_path: Path, watch: Watch) -> None:
    run = make_run(tmp_path / "run")
    found = {"verdict": "efa-gpudirect", "evidence": ["EFA with GPUDirect on 32 of 32 ranks"]}
    append_event(run.events_file, "network", step=1, **found)
    assert "network   EFA with GPUDirect on 32 of 32 ranks" in watch(run.path, "--once")[1]
    append_event(run.events_file, "network_degraded", step=2, reason="TCP on rank 3")
    assert "network   TCP on rank 3" in watch(run.path, "--once")[1]


def test_the_slowest_rank_is_named(tmp_path: Path, watch: Watch) -> None:
    run = make_run(tmp_path / "run")
    (run.logs / "rank-00009.json").write_text("cut o")
    write_rank_time(run.logs, 8, {"step": 300, "data_seconds": 9.0})
    append_event(run.events_file, "resumed", step=300, time=time.time() - 1)
    write_rank_time(run.logs, 8, {"step": 400})
    for rank in range(8):
        row = {"step": 400, "data_seconds": 0.1, "forward_seconds": 1.2 if rank == 5 else 0.9}
        write_rank_time(run.logs, rank, row)
    with trained_here(run):
        _, text = watch(run.path, "--once")
        assert "  ranks     slowest rank 5 on " in text and ": 30 % behind" in text
        write_rank_time(run.logs, 2, {"step": 390, "forward_seconds": 0.1})
        _, text = watch(run.path, "--once")
    assert "slowest rank 2 on " in text and ": 10 steps behind" in text


class Cluster:
    """A job with two pods, whose commands really run; their `/volume` is a folder here."""

    def __init__(self, server: ExecServer, folder: Path) -> None:
        self.server = server
        raw = job("pytorchjob", conditions=[condition("Created"), condition("Running")])
        wanted = plan("compute.strategy=ddp").to_json()
        wanted["program"]["command"] = ["python", "-m", "trainyard", "pod", "--run-dir", "/volume/run"]
        raw["metadata"]["annotations"] = {"trainyard.dev/plan": json.dumps(wanted)}
        pods = [pod("job-0", rank=0), pod("job-1", rank=1)]
        for number, each in enumerate(pods):
            each["spec"]["nodeName"] = f"n{number}"
        self.job, self.pods = raw, pods
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.node: Json = {"metadata": {"name": "n0"}, "status": ready}
        server.objects |= {
            f"{JOBS}/job": raw,
            JOBS: {"metadata": {"resourceVersion": "1"}, "items": [raw]},
            f"{SPACE}/pods": {"metadata": {"resourceVersion": "1"}, "items": pods},
            "/api/v1/nodes/n0": self.node,
            "/api/v1/nodes/n1": self.node,
        }
        self.kubeconfig = folder / "kubeconfig"
        write_kubeconfig(self.kubeconfig, server.server)

    @property
    def words(self) -> tuple[str, ...]:
        return ("--job", "job", "--kubeconfig", str(self.kubeconfig), "--kind", "pytorchjob", "--once")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    make_run(tmp_path / "volume" / "run", device="cuda:0")
    with exec_server(root=str(tmp_path / "volume")) as server:
        yield Cluster(server, tmp_path)


def test_a_job_is_read_in_its_pods_without_a_change(cluster: Cluster, watch: Watch, smi: Smi) -> None:
    smi(*BUSY)
    code, text = watch(*cluster.words)
    assert code == 0, text
    assert text.startswith("job · pytorchjob · running · 2 of 2 pods · ")
    assert "step 400/4,000   loss 2.02" in text
    assert "2 GPUs · 97 % busy" in text
    assert cluster.server.changes == []
    assert {asked["path"].split("/")[6] for asked in cluster.server.asked} == {"job-0", "job-1"}


def test_a_job_whose_gpus_or_nodes_are_not_known_is_not_healthy(
    cluster: Cluster, watch: Watch, smi: Smi
) -> None:
    smi(*BUSY)
    taints = {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}
    cluster.server.objects["/api/v1/nodes/n0"] = {**cluster.node, "spec": taints}
    code, text = watch(*cluster.words, "--json")
    [alert] = json.loads(text)["alerts"]
    assert (code, alert["rule"], alert["subject"]) == (1, "node-leaving", "n0")
    cluster.server.refuses[:] = [403] * 8
    code, text = watch(*cluster.words, "--json")
    look = json.loads(text)
    assert (code, look.get("step")) == (1, None)
    assert [line.split(":")[0] for line in look["unknown"]] == ["job-0, job-1", "the steps"]


def test_a_pod_that_does_not_answer_hangs(
    cluster: Cluster, watch: Watch, smi: Smi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(*BUSY)
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 8\n")
    monkeypatch.setattr(watch_command, "POD_SECONDS", 1.0)
    code, text = watch(*cluster.words, "--json")
    look = json.loads(text)
    assert (code, look["step"]) == (1, 400)
    found = [(alert["rule"], alert["subject"]) for alert in look["alerts"]]
    assert found == [("hung", "job-0"), ("hung", "job-1")]
    text = watch(*cluster.words)[1]
    assert "2 of them: … does not answer (job-0, job-1)" in text
    assert "unknown: job-0, job-1: it does not answer" in text


def test_a_pod_that_still_runs_the_last_command_is_not_asked_again(
    cluster: Cluster, smi: Smi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(*BUSY)
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 8\n")
    monkeypatch.setattr(watch_command, "POD_SECONDS", 0.5)
    args = watch_command.parse_args(cluster.words)
    with watch_command.JobWatch(args, str(tmp_path)) as watched:
        looks = [watched.read_status() for _ in range(3)]
    assert [{alert.rule for alert in look.open_alerts} for look in looks] == [{"hung"}] * 3
    readings = [asked for asked in cluster.server.asked if "@gpus" in asked["command"][2]]
    assert len(readings) == 2


def test_a_job_is_followed_by_two_watches_and_its_last_figures_stay(
    cluster: Cluster, watch: Watch, smi: Smi, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(*BUSY)
    reported: list[str] = []
    monkeypatch.setattr(output, "announce", lambda phase, text, *_: reported.append(text))

    def pause(_seconds: float) -> None:
        if reported[-1].endswith(", healthy"):
            for each in cluster.pods:
                cluster.server.report(f"{SPACE}/pods", "DELETED", each)
        else:
            status = job("pytorchjob", conditions=[condition("Succeeded")])["status"]
            cluster.server.report(JOBS, "MODIFIED", {**cluster.job, "status": status})

    monkeypatch.setattr(time, "sleep", pause)
    code, text = watch(*(word for word in cluster.words if word != "--once"))
    assert code == 0, text
    assert text.startswith("job · pytorchjob · succeeded · 0 of 2 pods")
    assert "step 400/4,000" in text and "ago; the pods are gone" in text
    assert any(line.endswith("unknown") for line in reported), "no pod runs and the job has not ended"
    assert sorted(path for path, _ in cluster.server.watches) == [f"{SPACE}/pods", JOBS]
    assert cluster.server.reads.count(f"{SPACE}/pods") == 1, "changes come by the watch"


def test_a_job_that_is_not_seen_any_more_is_not_healthy(cluster: Cluster, smi: Smi) -> None:
    smi(*BUSY)
    args = watch_command.parse_args(cluster.words)
    with watch_command.JobWatch(args, str(cluster.kubeconfig.parent)) as watched:
        assert watched.read_status().health == "healthy"
        cluster.server.break_watches()
        eventually = (watched.read_status() for _ in range(20))
        look = next(look for look in eventually if look.unknown)
    assert (look.health, look.unknown[-1].split(":")[0]) == ("unknown", "the state of the job")
