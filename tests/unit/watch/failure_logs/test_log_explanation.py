# ruff: noqa: E501 - a line of a log is as long as it is
"""The cause of failed trainings, by logs as programs write them: the right class, or unknown."""

import itertools
import json
from pathlib import Path

import pytest
from tests.cases import each_case

from trainyard.watch.failure_classes import RECOVERABLE, FailureClass
from trainyard.watch.failure_logs.evidence_rules import rules
from trainyard.watch.failure_logs.log_explanation import LogExplanation, events_of, explain_logs, log_of

ROOT = Path(__file__).resolve().parents[4]
WATCHDOG = (
    "[rank0]:[E1218 20:27:21.426415540 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=131072000, Timeout(ms)=600000) ran for 600081 "
    "milliseconds before timing out."
)
TERMINATED = (
    "[rank0]:[E1218 20:27:22.1 ProcessGroupNCCL.cpp:2168] [PG ID 1 PG GUID 1 Rank 1] Process group watchdog thread "
    "terminated with exception: "
)
FRAMES = "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f in libc10.so)"
CHILDREN = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 4242)
============================================================"""
REMOTE = (
    "[rank3]: torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/"
    "ProcessGroupNCCL.cpp:3699, remote process exited or there was a network error, NCCL version 2.27.3\n"
    "[rank3]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
)
OOM = (
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity "
    "of 79.10 GiB of which 1.20 GiB is free."
)


def trace(error: str, prefix: str = "") -> str:
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 88, in <module>',
        "    main()",
        error,
    ]
    return "\n".join(prefix + line for line in lines)


def steps(first: int, last: int) -> str:
    return "\n".join(
        f"21:45:{n:02d} INFO  step {n}/600 loss 2.871 tokens/s 41,220" for n in range(first, last + 1)
    )


CASES: dict[str, tuple[str, str]] = {
    # class by class, as its program prints it
    "a gpu is full": ("oom-gpu", f"{steps(1, 3)}\n{trace(OOM)}\n{CHILDREN}"),
    "cublas has no memory": ("oom-gpu", trace("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling")),
    "vllm has no memory": ("oom-gpu", trace("ValueError: No available memory for the cache blocks. Try increasing")),
    "the kernel killed it": ("oom-host", "[Fri] Memory cgroup out of memory: Killed process 4242 (python)\nKilled"),
    "kubernetes killed it": ("oom-host", "State: Terminated\n  Reason: OOMKilled\n  Exit Code: 137"),
    "slurm killed it": ("oom-host", "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0\n" + CHILDREN),
    "ray killed it": ("oom-host", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."),
    "ray says it in capitals": ("oom-host", "worker exit: NODE_OUT_OF_MEMORY"),
    "malloc failed": ("oom-host", trace("RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")),
    "numpy failed": ("oom-host", trace("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.00 TiB for an array with shape")),
    "a collective waited": ("nccl-timeout", f"{WATCHDOG}\n{TERMINATED}[Rank 0] Watchdog caught\n{FRAMES}\n{CHILDREN}"),
    "nccl failed": (
        "nccl-error",
        trace(
            "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:317, "
            "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5"
        ),
    ),
    "a peer went away": ("nccl-error", REMOTE),
    "an xid of the hardware": ("hardware", "NVRM: Xid (PCI:0000:44:00): 79, pid=1234, GPU has fallen off the bus."),
    "an xid of memory": ("hardware", "NVRM: Xid (PCI:0000:b3:00): 95, pid='<unknown>', Uncontained ECC error"),
    "ecc": ("hardware", trace("RuntimeError: CUDA error: uncorrectable ECC error encountered") + f"\n{WATCHDOG}"),
    "nvlink": ("hardware", trace("torch.AcceleratorError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error")),
    "no such image": ("image-pull", 'Warning  Failed  Failed to pull image "a/b:c": rpc error: manifest unknown\nImagePullBackOff'),
    "preempted by kubernetes": ("preempted", "Normal  Preempted  Preempted by pod 3f2c on node ip-10-0-0-1"),
    "preempted by slurm": ("preempted", "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026 DUE TO PREEMPTION ***"),
    "preempted by kueue, quota above": (
        "preempted",
        "Pending: insufficient unused quota for nvidia.com/gpu in flavor h100\n"
        "Normal  Preempted  Preempted to accommodate a workload (UID: 1) due to reclamation within the cohort",
    ),
    "a spot machine": ("preempted", "2026-11-20 Spot Instance interruption notice received: terminate at 12:00"),
    "the node is gone": ("node-lost", "Warning NodeNotReady Node is not ready\nTaintManagerEviction Marking for deletion Pod a/b"),
    "slurm lost it": ("node-lost", "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026 DUE TO NODE FAILURE ***"),
    "github lost it": ("node-lost", "The self-hosted runner lost communication with the server."),
    "the disk is full": ("disk-full", trace("OSError: [Errno 28] No space left on device: '/mnt/step-500'") + f"\n{WATCHDOG}\nKilled"),
    "a quota of the disk": ("disk-full", "RuntimeError: Io(Os { code: 122 }) Disk quota exceeded (os error 122)"),
    "evicted for storage": ("disk-full", "Warning  Evicted  The node was low on resource: ephemeral-storage. Threshold quantity: 8"),
    "evicted for memory": ("oom-host", "Warning  Evicted  The node was low on resource: memory. Threshold quantity: 100Mi"),
    "more than the account may": ("quota", "An error occurred (VcpuLimitExceeded) when calling the RunInstances operation"),
    "more than the namespace may": ("quota", 'pods "w-0" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8'),
    "no room": (
        "unschedulable",
        "Warning  FailedScheduling  0/8 nodes are available: 8 Insufficient nvidia.com/gpu. preemption: 0/8 nodes are "
        "available: 8 No preemption victims found for incoming pod.",
    ),
    "our own configuration": ("configuration", "a.yaml:14: training.max_step: unknown key; did you mean max_steps?\n1 error. Nothing was started."),
    "a flag": ("configuration", "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --fast"),
    "hydra": ("configuration", "Could not override 'trainer.max_steps'.\nKey 'max_steps' is not in struct"),
    "divisibility": ("configuration", trace("AssertionError: num_attention_heads (10) must be divisible by tensor_parallel")),
    "no interface": ("configuration", "n1:1:1 [0] NCCL WARN Bootstrap : no socket interface found\n" + trace("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, internal error")),
    "a missing module": ("configuration", trace("ModuleNotFoundError: No module named 'flash_attn'")),
    "the code": ("user-code", f"{steps(1, 2)}\n" + trace("KeyError: 'labels'") + f"\n{CHILDREN}"),
    "the code on one rank": ("user-code", trace("ValueError: bad shape (3, 4)", "[rank2]: ") + f"\n{REMOTE}\n{WATCHDOG}\n{CHILDREN}"),
    "an assert on the gpu": ("user-code", f"{TERMINATED}CUDA error: device-side assert triggered\n{FRAMES}\n{WATCHDOG}"),
    "an illegal access": ("user-code", f"{TERMINATED}CUDA error: an illegal memory access was encountered\n{FRAMES}"),
    "xid 31": ("user-code", "NVRM: Xid (PCI:0000:44:00): 31, pid=1234, name=python, MMU Fault"),
    "our data has no room": (
        "disk-full",
        "/checkpoints/prepared/16d9: the tokens could not be prepared ([Errno 28] No space left on device). Free "
        "space, or set data.prepared_directory to a folder that can be written.",
    ),
    "our trainer stands still": (
        "hang",
        f"{steps(1, 5)}\nStep 6: nothing moved for 12.5 s (rank 1 noticed), so the run was ended. The stacks of all "
        f"threads: logs/hang-rank-0.txt, logs/hang-rank-1.txt.\n{CHILDREN}",
    ),
    "our trainer after a kill": (
        "unknown",
        "Step 6: after the end of rank 1 nothing moved for 3 s (rank 0 noticed), so the run was ended. The stacks of "
        "all threads: logs/hang-rank-0.txt.\nRank 1 (pid 4242) was killed by SIGKILL.",
    ),
    "not a number": ("nan", f"{steps(1, 4)}\nStep 5: the loss is not finite (nan)\n" + trace("TrainingFailedError: stop")),
    "autograd's detection of anomalies": ("nan", trace("RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output.")),
    "megatron": ("nan", trace("AssertionError: Rank 3: found NaN in local forward loss calculation. Device: 3")),
    "shared memory": (
        "data-loader",
        trace("RuntimeError: DataLoader worker (pid 11011) is killed by signal: Bus error. It is possible that")
        + "\nOSError: [Errno 28] No space left on device: '/dev/shm/torch_1'",
    ),
    "shared memory as a full disk": ("data-loader", trace("RuntimeError: unable to write to file </torch_4242_1>: No space left on device (28)")),
    "a worker died": ("data-loader", trace("RuntimeError: DataLoader worker (pid(s) 1, 2) exited unexpectedly")),
    "a worker raised": ("data-loader", trace("FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 0.")),
    "an old driver": ("cuda-mismatch", trace("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).")),
    "a wrong architecture": ("cuda-mismatch", trace("RuntimeError: CUDA error: no kernel image is available for execution on the device")),
    "a wrong abi": ("cuda-mismatch", trace("ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E")),
    "a gated model": ("auth", trace("huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo")),
    "no credentials": ("auth", trace("botocore.exceptions.NoCredentialsError: Unable to locate credentials")),
    "a monitor": ("hang", "[rank1]:[F ProcessGroupNCCL.cpp:1557] [PG 0 Rank 1] Heartbeat monitor timed out! Process will be terminated"),
    "gloo waited": ("hang", trace("RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete")),
    "nobody came": ("rendezvous-timeout", trace("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError")),
    "sockets": ("tcp-fallback", "14:57:41 ERROR NCCL opened sockets between machines that have EFA: EFA could not lock memory (error -12)."),
    "a slow network": ("slow-network", "ERROR the network between the machines is slow: all-reduce at 12.1 GB/s, the floor is 218 GB/s. Read"),
    "a port": ("port-in-use", trace("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500")),
    "time is over": ("time-limit", "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-20 DUE TO TIME LIMIT ***"),
    "the deadline of a job": ("time-limit", "Job was active longer than specified deadline"),
    "a person": ("cancelled", trace("KeyboardInterrupt")),
    "cancelled by somebody or something at github": ("unknown", "Error: The operation was canceled."),
    "signal 2": ("cancelled", "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 2"),
    "a wrong hash": ("installer", "  × Failed to download `numpy==2.1.0`\n  ╰─▶ Hash mismatch for `numpy==2.1.0`"),
    "no compiler": ("image", trace("RuntimeError: Failed to find C compiler. Please specify via CC environment variable.")),
    "half a checkpoint": ("checkpoint", trace("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory")),
    "a name that nobody knows": ("network", "fatal: unable to access 'https://github.com/a/b/': Could not resolve host: github.com"),
    "a busy store": ("service", trace("botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation (reached max retries: 4): x")),
    "a clock": ("clock", trace("botocore.exceptions.ClientError: An error occurred (RequestTimeTooSkewed) when calling the PutObject operation: x")),
    "an old runner": ("runner", "An error occured: Runner version v2.300.0 is deprecated and cannot receive messages."),
    "a runner that was lost": ("node-lost", "The self-hosted runner: gpu-7 lost communication with the server.\nError: The operation was canceled."),
    "our role": ("auth", "Error: Could not assume role with OIDC: Not authorized to perform sts:AssumeRoleWithWebIdentity"),
    # the last line is a consequence
    "no space, watchdog, killed": ("disk-full", f"OSError: [Errno 28] No space left on device\n{WATCHDOG}\nKilled"),
    "no memory inside nccl": (
        "oom-gpu",
        "n1:1:1 [0] include/alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'\n"
        + trace("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error")
        + "\nncclUnhandledCudaError: Call to CUDA function failed.",
    ),
    "cancelled after the cause": ("oom-gpu", f"{OOM}\n{CHILDREN}\nslurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026 ***\n{FRAMES}"),
    "glued to a progress bar": ("oom-gpu", f"Epoch 1:  52%|█████▏    | 312/600 [01:02<00:58]{OOM}"),
    "glued to a caret line": ("oom-gpu", f"[rank0]:     ^^^^^^^^^^^{OOM}"),
    # the word is not the class
    "healthy nan lines": ("unknown", " iteration 5/ 100 | lm loss: 2.1 | number of skipped iterations: 0 | number of nan iterations: 0 |\n" * 2),
    "only a signal 15": ("unknown", "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 15"),
    "only a signal 1": ("unknown", "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 1"),
    "only killed": ("unknown", f"{steps(1, 9)}\nKilled"),
    "only a counted child": ("unknown", CHILDREN),
    "nothing": ("unknown", ""),
    "success": ("unknown", f"{steps(1, 9)}\nsaved checkpoint"),
    "a pull that recovered": ("unknown", "Failed to pull image: i/o timeout\nErrImagePull\nSuccessfully pulled image\nStarted container\n" + steps(1, 9)),
    "a wait that ended": ("unknown", "FailedScheduling 0/8 nodes are available: 8 Insufficient nvidia.com/gpu\nSuccessfully assigned a/b to n1"),
    "an earlier life": (
        "unknown",
        "    State:          Running\n      Started:      Mon\n    Last State:     Terminated\n      Reason:       OOMKilled\n"
        "      Exit Code:    137\n    Ready:          True\n",
    ),
    "an earlier life, as yaml": (
        "unknown",
        "    lastState:\n      terminated:\n        reason: OOMKilled\n    name: pytorch\n    ready: true\n    state:\n"
        "      running:\n        startedAt: x\n",
    ),
    "a healthy node": ("unknown", "  DiskPressure     False   Mon  KubeletHasNoDiskPressure   kubelet has no disk pressure"),
    "an xid of a database": ("unknown", "LOG: recovered transaction xid 79 and xid=48"),
    "an xid that only ends": ("unknown", "NVRM: Xid (PCI:0000:44:00): 45, pid=1, name=python, Ch 00000010"),
    "a plugin that is not there": ("unknown", "NCCL INFO NET/Plugin: Could not find: libnccl-net.so: cannot open shared object file"),
    "a library that is not needed": ("unknown", "dlerror: libcudart.so.11.0: cannot open shared object file: No such file"),
    "a socket of the other family": ("unknown", "[W socket.cpp:436] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)."),
    "a deadline of a call": ("unknown", "rpc error: code = DeadlineExceeded desc = context deadline exceeded"),
    "a limit of locked memory": ("configuration", "NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\nncclSystemError: System call"),
    "padding": ("unknown", "INFO vocabulary 50257 is not divisible by 128, padded to 50304"),
    "our own weights": ("nan", f"{steps(1, 4)}\nStep 5: model.layers.3.weight is not finite after the optimizer step; it is not saved."),
    "our own loss": ("nan", "Step 5: the loss is not finite in epoch 1, batch 5. Lower training.learning_rate"),
    "refused once, trained on by epochs": ("unknown", "AccessDenied: PutObject\n" + "\n".join(f"Epoch {n}: loss 2" for n in range(9))),
    "refused once, trained on by parts of epochs": (
        "unknown",
        "wandb: ERROR api_key not configured (no-tty)\n" + "\n".join(f"{{'loss': 2.1, 'epoch': {n / 10}}}" for n in range(9)),
    ),
    "a file that is not there": ("configuration", trace("FileNotFoundError: [Errno 2] No such file or directory: 'train.bin'")),
    "no gpu": ("configuration", trace("RuntimeError: No CUDA GPUs are available")),
    "cudnn": ("unknown", trace("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")),
    "memory that was found after all": ("unknown", f"{OOM}\nretrying with a smaller batch\n{steps(1, 9)}"),
    "an old driver that only warns": ("unknown", "UserWarning: Warning: the NVIDIA driver on your system is too old, using CPU"),
    "an exit in a hang": ("nccl-timeout", f"worker 3 exited with code 0\n{WATCHDOG}"),
    "an exception of a lost connection": ("nccl-error", f"{REMOTE}\n" + trace("RuntimeError: NCCL communicator was aborted on rank 3.")),
    "a program's answer to a lost connection": ("nccl-error", f"{REMOTE}\n" + trace("MyTrainerError: giving up")),
}  # fmt: skip


def explained(text: str, exit_code: int | None = None) -> LogExplanation:
    return explain_logs([log_of("train.log", text)], exit_code)


@each_case(("klass", "text"), CASES.values(), ids=CASES)
def test_the_class_is_that_of_the_cause(klass: str, text: str) -> None:
    found = explained(text)
    assert str(found.klass) == klass, found.evidence


@each_case(("klass", "text"), CASES.values(), ids=CASES)
def test_a_long_run_before_it_and_colours_change_nothing(klass: str, text: str) -> None:
    found = explained(f"\x1b[32mstarted\x1b[0m\r\n{text}")
    assert str(found.klass) == klass
    if klass not in ("unknown",):
        assert all(line.startswith("train.log:") for line in found.evidence)


@each_case(("klass", "text"), CASES.values(), ids=CASES)
def test_aftermath_of_others_does_not_hide_the_cause(klass: str, text: str) -> None:
    """Other ranks' logs state only that a rank is gone."""
    if klass in ("unknown", "cancelled", "time-limit", "hang", "nccl-timeout", "nccl-error"):
        return
    others = [log_of(f"rank{n}.log", f"{REMOTE}\n{WATCHDOG}\n{CHILDREN}") for n in range(3)]
    if klass in ("image-pull", "quota", "unschedulable"):
        return  # then no other rank ran
    assert str(explain_logs([*others, log_of("rank9.log", text)]).klass) == klass


@each_case(
    # No log shows that a run is not proven; the exit code of its pod does.
    "klass",
    sorted(set(FailureClass) - {FailureClass.FINISHED, FailureClass.STOPPED, FailureClass.NOT_PROVEN}),
)
def test_every_class_has_a_case(klass: FailureClass) -> None:
    assert klass in {FailureClass(name) for name, _ in CASES.values()}


def test_what_heals_is_what_is_not_the_jobs_own_fault() -> None:
    never = {
        "oom-gpu",
        "oom-host",
        "configuration",
        "user-code",
        "nan",
        "disk-full",
        "auth",
        "unknown",
        "cancelled",
    }
    assert not {str(klass) for klass in RECOVERABLE} & never
    assert {
        FailureClass.PREEMPTED,
        FailureClass.NODE_LOST,
        FailureClass.HARDWARE,
        FailureClass.NCCL_TIMEOUT,
    } <= RECOVERABLE
    assert explained(CASES["no room"][1]).retryable, "room may come"
    assert not explained(
        "FailedScheduling 0/8 nodes are available: 8 node(s) didn't match selector"
    ).retryable
    assert explained("Failed to pull image: toomanyrequests: rate limit").retryable
    assert not explained(CASES["no such image"][1]).retryable


def test_logs_that_name_different_causes_are_not_guessed_from() -> None:
    found = explain_logs([log_of("a", OOM), log_of("b", "OSError: [Errno 28] No space left on device")])
    assert found.klass is FailureClass.UNKNOWN and not found.retryable
    assert "disk-full and oom-gpu" in found.evidence[0] and len(found.evidence) == 3


FULL = "OSError: [Errno 28] No space left on device"
FROM = "\n\nThe above exception was the direct cause of the following exception:\n\n"
DURING = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
MISSING = "ModuleNotFoundError: No module named 'apex'"


@pytest.mark.parametrize("text", [f"{FULL}\n{OOM}", f"{OOM}\n{FULL}", f"{trace(FULL)}\n{trace(OOM)}"])
def test_of_two_causes_in_one_log_the_first_decides_and_both_are_shown(text: str) -> None:
    found = explained(text)
    is_full = text.index("No space") < text.index("CUDA out")
    assert found.klass is (FailureClass.DISK_FULL if is_full else FailureClass.GPU_MEMORY)
    assert len(found.evidence) == 2 and not found.retryable


def test_a_retry_must_recover_from_every_cause() -> None:
    busy = "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation (reached max retries: 4): x"
    assert explained(trace(busy)).retryable
    assert explained(trace(busy) + "\n" + trace(OOM)).klass is FailureClass.SERVICE
    assert not explained(trace(busy) + "\n" + trace(OOM)).retryable


@pytest.mark.parametrize(("seconds", "klass"), [(1, "unknown"), (30, "disk-full")])
def test_of_several_logs_the_first_in_time_decides_beyond_the_error_of_clocks(
    seconds: int, klass: str
) -> None:
    late = log_of("a", f"2026-11-20T12:01:{seconds:02d}.5Z {OOM}")
    early = log_of("b", f"2026-11-20T12:01:00.25Z {FULL}")
    assert explain_logs([late, early]).klass == klass


def test_an_exception_that_led_to_another_is_the_cause() -> None:
    assert explained(trace(FULL) + FROM + trace(OOM)).klass is FailureClass.DISK_FULL
    assert explained(trace(OOM) + DURING + trace("KeyError: 'x'")).klass is FailureClass.GPU_MEMORY
    assert (
        explained(trace(MISSING) + FROM + trace("ValueError: no backend")).klass is FailureClass.CONFIGURATION
    )
    assert explained(trace(MISSING) + DURING + trace("KeyError: 'x'")).klass is FailureClass.USER_CODE
    assert explained(trace(MISSING) + DURING + trace(OOM)).klass is FailureClass.GPU_MEMORY


def test_what_a_mistake_of_the_code_follows_may_have_been_survived() -> None:
    assert explained("upload: AccessDenied\n" + trace("KeyError: 'x'")).klass is FailureClass.USER_CODE
    assert explained(f"mirror: AccessDenied\n{WATCHDOG}").klass is FailureClass.UNKNOWN
    assert explained("Step 5: the loss is not finite\n" + trace("MyStop: 5")).klass is FailureClass.NOT_FINITE


@pytest.mark.parametrize(
    "name", ["ModuleNotFoundError: No module named 'a'", "HTTPError: 403 Client Error: x"]
)
def test_an_exception_by_name_is_evidence_only_where_it_ends_a_traceback(name: str) -> None:
    assert explained(f"could not: {name}").klass is FailureClass.UNKNOWN
    assert explained(f"could not: {name}\n{WATCHDOG}").klass is FailureClass.NCCL_TIMEOUT
    stamped = trace(name, "2026-11-20T12:00:00.123Z ")
    assert explained(stamped).klass in (FailureClass.CONFIGURATION, FailureClass.AUTH)


def test_source_code_in_a_traceback_and_ignored_tracebacks_say_nothing() -> None:
    code = '  File "a.py", line 3, in f\n    log.error("CUDA out of memory"); x["y"]\nKeyError: \'y\''
    assert explained("Traceback (most recent call last):\n" + code).klass is FailureClass.USER_CODE
    for first in ("Exception ignored in: <function A.__del__ at 0x7f>", "--- Logging error ---"):
        assert explained(f"{first}\n{trace(OOM)}\n{WATCHDOG}").klass is FailureClass.NCCL_TIMEOUT


@pytest.mark.parametrize("text", [REMOTE, WATCHDOG, trace("KeyError: 'x'"), CHILDREN, "ImagePullBackOff"])
def test_exit_code_75_says_more_than_lines_of_ending(text: str) -> None:
    found = explained(text, 75)
    assert found.klass is FailureClass.STOPPED and found.retryable


_LINES = r"""Could not import apex: ModuleNotFoundError: No module named 'apex'
apex is not installed; using the default optimizer (ModuleNotFoundError: No module named 'apex')
requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url; using the local copy
403 Client Error: Forbidden for url: https://huggingface.co/api/models/x, falling back to the cache
No NaN or Inf detected
no nan detected in 512 gradients
NaN detected: 0
skipped 0 batches, nan_detected=False
Volatile uncorrectable ECC errors: 0
double-bit ECC errors: 0
    Double Bit ECC                    : 0
| Uncorrectable ECC errors            |        0 |
        Row Remapping Failure Occurred : No
Uncorrectable ECC error count = 0
No Xid 79 errors in dmesg
node-problem-detector: watching for Xid 48, 62, 79, 95
health check: 0 uncorrectable ECC errors on 8 GPUs
DCGM: double bit ECC error total: 0
"OOMKilled": false, "Dead": false,
kube_pod_container_status_last_terminated_reason{reason="OOMKilled"} 0
memory.events: oom_kill events: 0
oom-killer disabled for this cgroup
  --retry-on-oom  restart with half the batch when CUDA out of memory is raised
expandable_segments is set to avoid CUDA out of memory
auto_find_batch_size: halves the batch if CUDA out of memory
accelerate.find_executable_batch_size catches torch.OutOfMemoryError and RuntimeError
FutureWarning: torch.cuda.OutOfMemoryError is deprecated, use torch.OutOfMemoryError
DeprecationWarning: catching MemoryError is deprecated
UserWarning: No space left on device is not checked on this file system
[W1120 12:00:00.000 socket.cpp:764] no space left on device was not seen
INFO:root:checked that the loss is not finite in no step
n1:1:1 [0] NCCL INFO retry after ncclRemoteError: using the local ring
n1:1:1 [0] NCCL INFO NET/IB : no ncclSystemError so far
n1:1:1 [0] NCCL INFO Failed to initialize any NET plugin, falling back to Socket
sample 0: 'How do I fix CUDA out of memory? Killed process'
prompt: torch.OutOfMemoryError: CUDA out of memory. What can I do?
{"text": "OSError: [Errno 28] No space left on device", "label": 3}
Generated: an error occurred (AccessDenied) when calling PutObject
decoded: RuntimeError: DataLoader worker (pid 1) exited unexpectedly
s3: AccessDenied on the first endpoint, retrying in 2 s
upload failed with SlowDown; ExpiredToken, will be retried
Unable to locate credentials; continuing without a bucket
wandb: api_key not configured, wandb is disabled
write failed: No space left on device; skipped the trace
pin_memory: Cannot allocate memory, fell back to pageable
fused kernels: undefined symbol: libx.so: undefined symbol: _Z1; using the fallback
This job may be preempted by a job of higher priority
Listening for a Spot Instance interruption notice
#SBATCH requeue on NODE_FAIL
abort_after: stop if no progress for 600 s
heartbeat: hang_suspected=false
Press Ctrl-C (KeyboardInterrupt) to stop
Exception handling is on: the trainer handles KeyboardInterrupt
monitoring for ErrImagePull and ImagePullBackOff
retries on ncclRemoteError: 3
rendezvous: retrying after RendezvousConnectionError
port 29500: OSError: [Errno 98] Address already in use, retrying on 29501
DataLoader worker (pid 77) is killed by signal: Terminated.
pydantic: 0 validation errors for TrainConfig
GPU 00000000:44:00.0  ECC Errors  Volatile  DRAM Uncorrectable : 0
Xid errors: 0, uncorrectable ECC errors: 0, GPU is lost: no
fabric: no GPU has fallen off the bus, no NVLink failures
{"level": "info", "msg": "AccessDenied for the optional bucket"}
time=2026-11-20T12:00:00Z level=warning msg="401 Client Error: Unauthorized, anonymous access"
2026-11-20 12:00:00,123 - datasets - WARNING - No space left on device for the cache
I1120 12:00:00.123456 1 store.cc:9] std::bad_alloc test hook installed
xformers can not be used: libcudart.so.12: undefined symbol: _ZN1
grad scaler: skipped, found nan in gradients: 0
loss scaler: found inf or nan in 0 of 64 gradients, skipping none
answer: the driver version is insufficient for CUDA runtime version
example 3: "Traceback: MemoryError"
try: import deepspeed; ModuleNotFoundError: No module named 'deepspeed' (optional)
checkpoint: disk quota exceeded is checked before each save, ok; going on
spot: no interruption notice; Preempted: 0
slurm: jobs that are cancelled DUE TO TIME LIMIT are requeued (enabled)
restart policy: on OutOfMemoryError: Task was killed, retry in 5 s
Back-off: FailedScheduling: 0
"quota": "ServiceQuotaExceeded: 0"
pull policy: retries ErrImagePull 3 times
found NaN in 0 tensors
aggregate uncorrectable ECC errors 0
PutObject AccessDenied (attempt 1/5)
earlier attempt: OOMKilled
previous job JOB 12 ON n1 CANCELLED AT 2026
Resuming a run that was Preempted by the scheduler
resumed from step 500 after NODE_FAIL
Last exit: DUE TO TIME LIMIT"""
HARMLESS_LINES = [line.replace("\\n", "\n") for line in _LINES.split("\n")]
CAUSES = [case for case in CASES.values() if case[0] != "unknown"]


@each_case("line", HARMLESS_LINES)
def test_a_harmless_line_alone_is_no_failure(line: str) -> None:
    assert explained(line).klass is FailureClass.UNKNOWN, explained(line).evidence


@each_case("line", HARMLESS_LINES)
def test_a_harmless_line_never_takes_the_place_of_the_cause(line: str) -> None:
    """The cause or `unknown`, wherever the harmless line is; and mostly the cause."""
    known = 0
    for klass, text in CAUSES:
        for log in (f"{line}\nstep 1\n{line}\n{text}", f"{text}\n{line}"):
            found = explained(log, 1)
            assert str(found.klass) in (klass, "unknown"), (log, found.evidence)
            known += found.klass is not FailureClass.UNKNOWN
    assert known >= len(CAUSES) * 2 - 3


@each_case(
    ("code", "klass"),
    [(0, "finished"), (75, "stopped"), (130, "cancelled"), (-2, "cancelled"), (137, "unknown"), (-9, "unknown")]
    + [(code, "unknown") for code in (1, 2, 3, 134, 139, 143, 255, None)],
)  # fmt: skip
def test_an_exit_code_alone_says_little(code: int | None, klass: str) -> None:
    assert str(explained(steps(1, 9), code).klass) == klass


def test_unknown_shows_where_the_log_ends() -> None:
    found = explained("one\nthe end\n\n", 139)
    assert "signal 11" in found.evidence[0]
    assert found.evidence[1] == "train.log:2: the last line: the end"
    assert "PYTHONFAULTHANDLER" in found.fix, "what to do next depends on the exit code"


def test_a_line_that_many_causes_share_says_where_to_look() -> None:
    found = explained("step 1\nSegmentation fault (core dumped)\n", 139)
    assert (found.klass, found.who) == (FailureClass.UNKNOWN, "node") and "dmesg" in found.fix
    found = explained("##[error]The operation was canceled.", 1)
    assert (found.klass, found.who) == (FailureClass.UNKNOWN, "github") and "annotations" in found.fix


def test_an_exit_code_does_not_hide_the_cause() -> None:
    for code in (1, 137, -9, 75):
        assert explained(OOM, code).klass is FailureClass.GPU_MEMORY


def test_an_exception_did_not_end_a_process_that_a_signal_ended() -> None:
    text = trace("ValueError: metrics could not be sent")
    assert explained(text, 1).klass is FailureClass.USER_CODE
    assert explained(text, 137).klass is FailureClass.UNKNOWN
    assert explained(f"{text}\n{steps(1, 9)}", 1).klass is FailureClass.UNKNOWN


def test_events_are_read_as_json_of_kubernetes_as_lines_and_as_text() -> None:
    items = [
        {
            "type": "Warning",
            "reason": "Evicted",
            "message": "The node was low on resource:\nephemeral-storage.",
        }
    ]
    for text in (json.dumps({"kind": "List", "items": items}), json.dumps(items), json.dumps(items[0])):
        assert explain_logs([events_of("events", text)]).klass is FailureClass.DISK_FULL
    lines = '{"event": "started"}\n{"event": "hang_suspected", "step": 3}\n'
    assert explain_logs([events_of("events.jsonl", lines)]).klass is FailureClass.HANG
    assert (
        explain_logs([events_of("e", "Warning  Evicted  The node was low on resource: memory.")]).klass
        is FailureClass.HOST_MEMORY
    )


@each_case("text", ["{", "[" * 5000, "null", "3", '"x"', "[]", "[1, null]", "\x00\xff" * 50, "\r\n\r\n"])
def test_any_text_has_an_answer(text: str) -> None:
    assert explain_logs([events_of("e", text), log_of("l", text)]).klass is FailureClass.UNKNOWN


def test_a_line_of_a_megabyte_is_read_in_a_moment() -> None:
    import time

    begun = time.process_time()
    explained("x" * 1_000_000 + "\n" + "Xid " * 100_000 + "\n" + " step 1" * 100_000)
    explained(
        "\n".join(word * 3_000 for word in ("errors ", "if a, ", "no with ", "ECC (", "0 x ", "sample: "))
    )
    explained("if no a, b, with the " * 900 + "CUDA out of memory")
    assert time.process_time() - begun < 120


@pytest.mark.parametrize("name", ["src/trainyard/training/run", "docs"])
def test_the_sources_of_healthy_programs_are_no_failure(name: str) -> None:
    """Most lines of code and prose hold no evidence: the rules match no common words."""
    texts = [
        path.read_text() for path in sorted((ROOT / name).rglob("*")) if path.suffix in (".py", ".md", ".sh")
    ]
    lines = [line for text in texts for line in text.splitlines() if "evidence" not in line]
    hits = [line for line in lines if any(rule.matches(line) for rule in rules())]
    assert len(hits) < len(lines) / 60


ALONE = """torch.OutOfMemoryError is raised by the allocator when the pool is exhausted
Tip: set PYTORCH_ALLOC_CONF=expandable_segments:True to reduce CUDA out of memory errors
Registered handler for CUDA out of memory
CUDA out of memory handler installed
OOM guard: CUDA out of memory threshold 95 %
checkpoint manager: No space left on device policy = delete oldest
[info] AccessDenied retries: 5
S3 client: retryable errors: SlowDown, ExpiredToken, AccessDenied
the loss is nan check: enabled
NaN detected callback registered
Known issue: driver version is insufficient for CUDA runtime on old images
Error codes: ENOSPC=28, EDQUOT=122
exit codes: 137=OOMKilled 143=SIGTERM
Reason codes: OOMKilled, Evicted, Completed
NCCL docs: ncclSystemError means a system call failed
see https://example.com/docs/no-space-left-on-device for ENOSPC
test_cuda_out_of_memory PASSED
tests/test_oom.py::test_raises_MemoryError PASSED
pull secrets found; ErrImagePull not expected
kubelet: ImagePullBackOff events in the last hour: 0
monitoring Xid 79
Pod priority: may be Preempted by system-critical pods
metrics: preempted_total{reason="Preempted"} 0
alert rule NodeLost loaded
TaintManagerEviction enabled
GPU health: uncorrectable ECC error count: [0, 0, 0, 0]
ECC: uncorrectable ECC error counters cleared
hang_suspected callback after 600 s
Watchdog caught collective operation timeout will abort the process (TORCH_NCCL_ASYNC_ERROR_HANDLING=1)
TORCH_NCCL_BLOCKING_WAIT: ncclRemoteError raises in Python
RendezvousTimeoutError after 900 s (rdzv timeout)
Answer: MemoryError is raised when Python runs out of memory
unit test: raised MemoryError as expected"""
"""Lines that name a failure and report none: of handlers, rules, lists of codes, advice."""


@each_case("line", ALONE.split("\n"))
def test_a_line_that_only_names_a_failure_is_no_evidence_even_alone(line: str) -> None:
    assert explained(line).klass is FailureClass.UNKNOWN


@pytest.mark.parametrize(
    ("line", "klass"),
    [
        ("error code 28: No space left on device", "disk-full"),
        ("CUDA out of memory. Check the batch size", "oom-gpu"),
        ("No space left on device: check the quota", "disk-full"),
        ("exit code 1 after CUDA out of memory. Tried to allocate 2 GiB", "oom-gpu"),
        ("save failed: OSError: [Errno 28] No space left on device (policy: stop)", "disk-full"),
    ],
)
def test_a_failure_with_advice_behind_it_is_evidence(line: str, klass: str) -> None:
    assert explained(line).klass == klass


def test_an_exception_without_a_rule_names_the_last_line_of_the_users_own_code() -> None:
    library = '  File "/venv/lib/python3.12/site-packages/numpy/lib/io.py", line 7, in load'
    text = trace("KeyError: 'steps'").replace("    main()\n", f"    main()\n{library}\n    read()\n")
    found = explained(text)
    assert (str(found.klass), found.who) == ("user-code", "program")
    assert "KeyError" in found.cause and "train.py:88" in found.cause


def test_unknown_shows_the_last_error() -> None:
    found = explained("start\nERROR: frobnicator 7 gave up\nmake: *** [Makefile:29: build] Error 1")
    assert found.klass is FailureClass.UNKNOWN
    assert any("frobnicator 7 gave up" in line for line in found.evidence)


def test_a_time_limit_explains_the_endings_before_it() -> None:
    ended = "srun: Job step aborted: Waiting up to 47 seconds for job step to finish."
    limit = "slurmstepd: error: *** STEP 4.0 ON n1 CANCELLED AT 2026-11-20T09:09:37 DUE TO TIME LIMIT ***"
    assert explained(f"{ended}\n{limit}").klass is FailureClass.TIME_LIMIT


LIBRARY_FRAME = '  File "/venv/lib/python3.12/site-packages/{file}", line 7, in check\n    {source}'
IN_LIBRARIES = (
    ("user-code", "trainer/args.py", "raise ValueError(text)", "ValueError: depth 9"),
    ("unknown", "streaming/base.py", "raise RuntimeError(text)", "RuntimeError: failed to download shard 9"),
    ("user-code", "torch/nn/functional.py", "return f(x)", "RuntimeError: shapes differ"),
)


def test_an_exception_in_a_library_is_a_mistake_of_the_program_only_by_its_type_or_its_tensors() -> None:
    for klass, file, source, last in IN_LIBRARIES:
        frame = LIBRARY_FRAME.format(file=file, source=source)
        assert explained(trace(last).replace("    main()\n", f"    main()\n{frame}\n")).klass == klass


@each_case(
    ("text", "klass"),
    [
        ('File "train.py", line 9, in f\n    print("NaN loss in one part")', "unknown"),
        ("train.py: error: unrecognized arguments: --deep", "configuration"),
        ("train.py: 3 arguments", "unknown"),
        ("RuntimeError: A worker is gone. Please check the lines above for the actual error", "unknown"),
        ("ImportError: cannot import name 'csrc' from 'raster' (/venv/raster/__init__.py)", "image"),
        ("Error: upload of the cache failed: invalid name of the cache", "unknown"),
        (
            "##[error]Client network socket disconnected before secure TLS connection was established",
            "network",
        ),
        ("TLS connection established", "unknown"),
        ("Task ran out of memory. Request more for the step.", "oom-host"),
        ("the task never ran out of memory", "unknown"),
        ("slurmctld: node gpu-1-3 not resumed by ResumeTimeout(900) - marking down", "unschedulable"),
        ("ResumeTimeout = 900", "unknown"),
    ],
)
def test_the_words_of_a_last_line_decide_only_where_they_report_a_cause(text: str, klass: str) -> None:
    assert explained(text).klass == klass


def test_an_installer_that_failed_yields_to_its_own_cause() -> None:
    build = "ERROR: Failed building wheel for raster"
    assert explained(build).klass == "installer"
    assert explained(f"OSError: [Errno 28] No space left on device\n{build}").klass == "disk-full"
    assert explained(
        "error: failed to solve: exit code: 137\nFailed to build Docker image: exit status 1"
    ).klass == (FailureClass.UNKNOWN)


TOLERATIONS = {
    "kubectl": "node.kubernetes.io/not-ready:NoExecute op=Exists for 300s\n{}node.kubernetes.io/unreachable:NoExecute op=Exists for 300s",
    "kubectl of 2019": "node.kubernetes.io/not-ready:NoExecute for 300s\n{}node.kubernetes.io/unreachable:NoExecute for 300s",
    "a daemon's": "node.kubernetes.io/disk-pressure:NoSchedule op=Exists\n{}node.kubernetes.io/unreachable:NoExecute op=Exists\n{}op=Exists",
    "a job's": "nvidia.com/gpu op=Exists\n{}team=ml:NoSchedule\n{}node.kubernetes.io/unreachable:NoExecute op=Exists for 300s",
}
DESCRIBED = {
    "image-pull": 'Failed  kubelet  Failed to pull image "o/t:v7": rpc error: code = NotFound desc = failed to resolve: o/t:v7: not found',
    "quota": 'FailedCreate  job-controller  Error creating: pods "x" is forbidden: exceeded quota: gpu, requested: requests.nvidia.com/gpu=8',
    "unschedulable": "FailedScheduling  default-scheduler  0/8 nodes are available: 3 node(s) had untolerated taint {node.kubernetes.io/unreachable: }, 5 Insufficient nvidia.com/gpu.",
    "configuration": 'FailedMount  kubelet  MountVolume.SetUp failed for volume "v" : secret "s3" not found',
    "service": 'FailedAttachVolume  attachdetach-controller  Multi-Attach error for volume "v"',
    "oom-host": "Evicted  kubelet  The node was low on resource: memory. Threshold quantity: 100Mi, available: 1Mi.",
    "disk-full": "Evicted  kubelet  The node was low on resource: ephemeral-storage. Threshold quantity: 8",
    "preempted": "Preempted  default-scheduler  Preempted by pod 3f2c on node ip-10-0-0-1",
    "hardware": "UnexpectedAdmissionError  kubelet  Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 8, Available: 7, which is unexpected",
    "image": 'Failed  kubelet  Error: failed to create containerd task: OCI runtime create failed: exec: "torchrun": executable file not found in $PATH',
    "node-lost": "NodeNotReady  node-controller  Node is not ready",
    "unknown": "BackOff  kubelet  Back-off restarting failed container",
}


def test_what_a_pod_tolerates_is_no_evidence_for_any_fault() -> None:
    """Every pod tolerates a node that is not ready or does not answer for 300 seconds."""
    wrong = []
    for (klass, line), (form, tolerations), indent in itertools.product(
        DESCRIBED.items(), TOLERATIONS.items(), ("", "  ")
    ):
        text = (
            f"Name:             trainer-worker-0\nStatus:           Pending\nTolerations:      {tolerations.format(' ' * 18, ' ' * 18)}"
            f"\nEvents:\n  Type     Reason  Age  From  Message\n  Warning  {line}"
        )
        found = explained("\n".join(indent + each for each in text.splitlines()))
        if found.klass != klass:
            wrong.append(f"{klass}, {form}: {found.klass}, {found.cause}")
    tainted = explained(
        "Taints:             node.kubernetes.io/unreachable:NoExecute\n                    team=ml:NoSchedule"
    )
    assert (wrong, tainted.klass) == ([], "node-lost")


LASTING = {
    "configuration": (
        '2m  Warning  FailedCreatePodSandBox  pod/train-0  Failed to create pod sandbox: rpc error: code = Unknown desc = unable to get OCI runtime for sandbox "a5": no runtime for "nvidia" is configured',
        "docker: Error response from daemon: unknown or invalid runtime name: nvidia.",
        "nvidia-container-cli: device error: no-gpu-has-128MiB-to-run: unknown device",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "Failed to initialize NVML: No supported GPUs were found",
    ),
    "hardware": (
        "NVRM: GPU at PCI:0000:44:00: GPU-1 is lost\nNVRM: Xid (PCI:0000:44:00): 79, pid=1, GPU has fallen off the bus.",
        "Unable to determine the device handle for GPU0000:44:00.0: GPU is lost.  Reboot the system to recover this GPU",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    ),
    "cuda-mismatch": ("Failed to initialize NVML: Driver/library version mismatch",),
    "nccl-error": (
        "n1:901:933 [5] ibvwrap.c:262 NCCL WARN Call to ibv_create_qp failed with error No such device errno 19",
        "n1:901:933 [5] ibvwrap.c:262 NCCL WARN Call to ibv_create_qp failed",
        "n1:901:933 [5] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx_x:1, curr state INIT",
    ),
}


def test_a_retry_recovers_from_a_lasting_fault_of_a_node_on_another_node_only() -> None:
    wrong = []
    for klass, texts in LASTING.items():
        for text in texts:
            found = explained(text)
            if (found.klass, found.retryable, found.other_node) != (klass, False, True):
                wrong.append(f"{klass}: {text}: {found}")
    for text in ("Warning  NodeNotReady  Node is not ready", "Failed to initialize NVML: Unknown Error"):
        found = explained(text)
        wrong += [] if found.retryable and not found.other_node else [str(found)]
    assert not wrong, "\n".join(wrong)
