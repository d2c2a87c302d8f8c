"""Start processes that have torch imported already, as forks of one that imported it.

    tests ──Popen──> server (imported torch once) ──fork──> keeper ──fork──> the script, as `__main__`

Importing torch takes 1.5 to 3 s of processor time, the imports of other scripts half a second, and the tests
start many hundred processes. A warm start takes 20 ms. The process is as real as any other: it has its own
pid, session, environment and standard files, runs the shipped script from its first line, and can be killed.
Processes that it starts with `sys.executable` are warm too, such as a launcher's agent and workers. The
keeper waits for it and passes its exit status on. A `sitecustomize.py` runs after the imports, so it must
replace a function where it is used.

Tests whose subject is the start of Python use `subprocess`. `test_warm_start.py` compares the two.
"""

import atexit
import fcntl
import gc
import io
import json
import os
import random
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, NoReturn

import trainyard

IMPORTED = ("torch", "torch._dynamo", "torch.distributed.run", "trainyard.training.loop")
"""The imports of a training process."""
TRAINERS = (
    *("transformers.trainer", "transformers.models.llama.modeling_llama", "pytorch_lightning.cli", "peft"),
    *("transformers.integrations.integration_utils", "trl.trainer.sft_trainer", "trl.trainer.grpo_trainer"),
    *("datasets", "torch.utils.tensorboard"),
)
"""The imports of trainers that nobody here wrote: seconds of processor time for each process."""
SERVER = "TRAINYARD_TEST_WARM_START"
"""In a warm process: the variable with the path of the server's socket."""
_LIBRARIES = ("ATEN_", "MKL_", "OPENBLAS_", "OMP_", "TORCH_LOGS", "TORCH_CPP_LOG_LEVEL")
_EARLY = ("LD_", "LC_", "LANG", "PYTHON", *_LIBRARIES)
"""Variables that are read while Python or torch starts. A process that needs another value starts cold."""
_APPLIED = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "PYTHONPATH", "PYTHONUNBUFFERED")
"""Those that a warm process applies itself, or that change no result."""
_NUMBER = struct.Struct("q")
_IGNORABLE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen`, but warm if it runs a script or a module with `sys.executable`.

    It replaces the methods of Python 3.11 to 3.13 that start a process and wait for it.
    """

    has_trainers = False
    """Whether the process, and all that it starts, has the libraries of other trainers imported too."""
    _link: socket.socket | None = None
    """The connection to the keeper of a warm process."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *rest: Any) -> None:
        _close_fds, pass_fds, cwd, env, _startupinfo, _creationflags, shell, *more = rest
        pipes, (_restore, gid, gids, uid, umask, new_session, group) = more[:6], more[6:]
        environment = dict(os.environ if env is None else env)
        special = executable or preexec_fn or pass_fds or shell or group not in (None, -1)
        special = special or (gid, gids, uid, umask) != (None, None, None, -1)
        if special or not _can_be_warm(args, environment):
            super()._execute_child(args, executable, preexec_fn, *rest)  # type: ignore[misc]
            return
        order = {
            "parent": os.getpid(),
            "words": [os.fspath(word) for word in args[1:]],
            "folder": str(Path(cwd or ".").absolute()),
            "environment": environment,
            "new_session": bool(new_session),
            "ignored": [number for number in _IGNORABLE if signal.getsignal(number) is signal.SIG_IGN],
            "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        }
        stdin, _, _, stdout, _, stderr = pipes
        files = [own if pipe == -1 else pipe for own, pipe in enumerate((stdin, stdout, stderr))]
        try:
            self._link = _sent(order, files, has_trainers=self.has_trainers)
            self.pid = _number(self._link)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._link is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        if wait_flags & os.WNOHANG and not select.select([self._link], [], [], 0)[0]:
            return 0, 0
        status = _number(self._link)
        self._link.close()
        return self.pid, status

    def _internal_poll(self, _deadstate: int | None = None, **further: Any) -> int | None:
        if self._link is not None:
            further = {"_waitpid": lambda _pid, flags: self._try_wait(flags)}
        return super()._internal_poll(_deadstate, **further)  # type: ignore[misc,no-any-return]


class TrainerPopen(Popen):
    """A warm start with transformers, TRL, peft and Lightning imported; they find the Hub offline."""

    has_trainers = True


def start(
    command: Sequence[str | Path], *, has_trainers: bool = False, **options: Any
) -> "subprocess.Popen[str]":
    """Start a command whose outputs are read as text: two pipes, or one with `stderr=subprocess.STDOUT`."""
    usual = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return (TrainerPopen if has_trainers else Popen)(command, **{**usual, **options})


def run(
    command: Sequence[str | Path], *, timeout: float, input_text: str | None = None, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, like `subprocess.run`; both outputs are captured as text."""
    options |= {} if input_text is None else {"stdin": subprocess.PIPE}
    with start(command, **options) as process:
        try:
            output, errors = process.communicate(input_text, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have started; warm or not."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for thread in threads for child in thread.read_text().split()]
    children += [child for child, record in _records().items() if record["parent"] == pid]
    return [*children, *(below for child in children for below in descendants(child))]


def environment_of(pid: int) -> dict[str, str]:
    """The environment with which a process was started; empty if it is gone."""
    if (record := _records().get(pid)) is not None:
        return dict(record["environment"])
    try:
        entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _records() -> dict[int, dict[str, Any]]:
    """Parent and environment of each warm process that is alive, by pid; its keeper writes them to a file."""
    found = {}
    for server in (_server, _server_of_trainers):
        records = server().parent.glob("[0-9]*") if server.cache_info().currsize else ()
        for record in records:
            with suppress(FileNotFoundError):  # it has just ended
                found[int(record.name)] = json.loads(record.read_text())
    return found


def _can_be_warm(args: Any, environment: Mapping[str, str]) -> bool:
    if isinstance(args, str | bytes | os.PathLike) or len(args) < 2:
        return False
    if not _is_this_python(os.fspath(args[0]), environment):
        return False
    first = os.fspath(args[1])
    is_plain = first == "-m" or first.endswith(".py") or list(args[1:3]) == ["-P", "-m"]
    return is_plain and _early(environment) == _early(os.environ)


def _is_this_python(program: str, environment: Mapping[str, str]) -> bool:
    """Whether `program` is this environment's Python, by its path or as `python` on the PATH."""
    if program != "python":
        return program == sys.executable
    found = shutil.which(program, path=environment.get("PATH"))
    return found is not None and Path(found).parent == Path(sys.executable).parent


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a warm process must have in common with the server."""
    return {n: value for n, value in environment.items() if n.startswith(_EARLY) and n not in _APPLIED}


@cache
def _server() -> Path:
    """Return the socket of the server that the processes of this test run share."""
    return _join_server("base", ())


@cache
def _server_of_trainers() -> Path:
    """The same, with the libraries of other trainers imported."""
    return _join_server("trainers", TRAINERS, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")


def _join_server(name: str, modules: Sequence[str], **variables: str) -> Path:
    """Return the socket of a server, which the first process of the test run starts.

    Each of them has the pipe `users` open for writing; the server ends when nobody has any more.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    kind = zlib.crc32(repr((sys.executable, __file__, sorted(_early(os.environ).items()))).encode())
    folder = Path(tempfile.gettempdir(), f"trainyard-warm-{run[:12]}-{kind:08x}-{name}")
    folder.mkdir(mode=0o700, exist_ok=True)
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            os.open(folder / "users", os.O_WRONLY | os.O_NONBLOCK)  # is closed at the end of this process
        except OSError:  # there is none yet, or nobody reads it
            shutil.rmtree(folder)
            folder.mkdir(mode=0o700)
            _start_server(folder, modules, {**os.environ, **variables})
    return folder / "socket"


def _start_server(folder: Path, modules: Sequence[str], environment: Mapping[str, str]) -> None:
    os.mkfifo(folder / "users")
    command = [sys.executable, str(Path(__file__).absolute()), str(folder / "socket"), *modules]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    server = subprocess.Popen(command, stdin=null, stdout=pipe, text=True, env=environment)
    server.returncode = 0  # it may outlive this process, and nobody waits for it
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n", "the server of warm processes did not start"
    server.stdout.close()
    os.open(folder / "users", os.O_WRONLY)


def _sent(order: Mapping[str, Any], files: Sequence[int], *, has_trainers: bool) -> socket.socket:
    """Ask the server for a process with these standard files; return the connection to its keeper."""
    own = os.environ.get(SERVER)  # in a warm process: the server that it was forked from
    path = own or (_server_of_trainers() if has_trainers else _server())
    link = socket.socket(socket.AF_UNIX)
    link.connect(str(path))
    content = json.dumps(order).encode()
    socket.send_fds(link, [_NUMBER.pack(len(content))], files)
    link.sendall(content)
    return link


def _number(link: socket.socket) -> int:
    """Read a pid or an exit status."""
    content = link.recv(_NUMBER.size, socket.MSG_WAITALL)
    if len(content) < _NUMBER.size:
        raise ChildProcessError("the keeper of a warm process is gone")
    return int(_NUMBER.unpack(content)[0])


def _modules_of_scripts() -> Iterator[str]:
    """Modules that other scripts import where they need them: boto3, and trainyard without the trainer."""
    yield "boto3"
    for module in walk_packages(trainyard.__path__, "trainyard."):
        # The callbacks import transformers, which reads variables such as HF_ENDPOINT when it is imported.
        left_out = ("trainyard.training", "trainyard.programs.integrations")
        if not module.name.startswith(left_out) and not module.name.endswith(".__main__"):
            yield module.name


def _read_models_of_aws() -> None:
    """Read what botocore reads for each client of S3, and have every session find it."""
    session: Any = import_module("botocore.session")
    session.create_loader = cache(session.create_loader)
    session.get_session().create_client("s3", region_name="us-east-1")


def _serve(path: str) -> dict[str, Any]:
    """Start processes until those of the tests have ended; return each order in its process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that keepers leave no zombies
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    users = os.open(Path(path).with_name("users"), os.O_RDONLY | os.O_NONBLOCK)
    print("ready", flush=True)
    os.dup2(2, 1)  # the starter's pipe has its end
    while True:
        ready, _, _ = select.select([listener.fileno(), users], [], [])
        if users in ready:
            _end_without_users(users, Path(path).parent)
            continue
        link, _ = listener.accept()
        if not os.fork():
            listener.close()
            os.close(users)
            return _keep(link, Path(path).parent)
        link.close()


def _end_without_users(users: int, folder: Path) -> None:
    """End the server, unless a process of the tests has just joined."""
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if select.select([users], [], [], 0)[0]:
            shutil.rmtree(folder, ignore_errors=True)
            Path(lock.name).unlink()
            os._exit(0)


def _keep(link: socket.socket, records: Path) -> dict[str, Any]:
    """Fork the process, report its pid and its end, and end; return its order in the process itself."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, files, _, _ = socket.recv_fds(link, _NUMBER.size, 3)
    order: dict[str, Any] = json.loads(link.recv(_NUMBER.unpack(head)[0], socket.MSG_WAITALL))
    pid = os.fork()
    if not pid:
        link.close()
        _become(order, files)
        return order
    for own, file in enumerate(files):
        os.close(file)
        os.dup2(link.fileno(), own)  # so that pipes end with the process
    record, written = records / str(pid), records / f".{pid}"
    written.write_text(json.dumps({name: order[name] for name in ("parent", "environment")}))
    written.rename(record)
    link.sendall(_NUMBER.pack(pid))
    status = os.waitpid(pid, 0)[1]
    record.unlink(missing_ok=True)
    with suppress(BrokenPipeError):  # nobody waits for it any more
        link.sendall(_NUMBER.pack(status))
    os._exit(0)


def _become(order: Mapping[str, Any], files: Sequence[int]) -> None:
    """Take what belongs to the process from its order, as if Python had been started with it."""
    for own, file in enumerate(files):
        os.dup2(file, own)
        os.close(file)
    sys.stdin = os.fdopen(0, closefd=False)
    if order["environment"].get("PYTHONUNBUFFERED"):
        raw = os.fdopen(1, "wb", 0, closefd=False)
        sys.stdout = io.TextIOWrapper(raw, write_through=True)
    else:
        sys.stdout = os.fdopen(1, "w", 1 if os.isatty(1) else -1, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    if order["new_session"]:
        os.setsid()
    os.chdir(order["folder"])
    path = os.environ[SERVER]
    os.environ.clear()
    os.environ.update(order["environment"] | {SERVER: path})
    for number in _IGNORABLE:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in order["ignored"] else usual)
    signal.pthread_sigmask(signal.SIG_SETMASK, order["blocked"])
    random.seed()
    time.tzset()
    if threads := os.environ.get("OMP_NUM_THREADS"):
        sys.modules["torch"].set_num_threads(int(threads))
    gc.enable()
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[1:1] = folders
    for customize in (Path(folder, "sitecustomize.py") for folder in folders):
        if customize.exists():
            runpy.run_path(str(customize))


def _main(path: str, *modules: str) -> NoReturn:
    os.environ[SERVER] = path
    subprocess.Popen = Popen  # type: ignore[misc]  # before torch takes it for its agent
    from trainyard.training.runtime.before_torch import before_torch

    before_torch()
    for name in (*IMPORTED, *_modules_of_scripts(), *modules):
        import_module(name)
    _read_models_of_aws()
    gc.freeze()
    words = _serve(path)["words"]
    is_safe = words[0] == "-P"
    words = words[is_safe:]
    is_module = words[0] == "-m"
    sys.argv = words[is_module:]
    sys.path[0] = str(Path.cwd() if is_module else Path(words[0]).absolute().parent)
    if is_safe:
        del sys.path[0]
    _exit_with(lambda: _run_as_main(sys.argv[0], is_module=is_module))


def _run_as_main(name: str, *, is_module: bool) -> None:
    if is_module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(name, run_name="__main__")


def _exit_with(program: Callable[[], None]) -> NoReturn:
    """Run the program and exit as Python does, but free no objects: that would copy the shared memory."""
    code: Any = None
    try:
        program()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001  # as Python does at its own end
        traceback.print_exc()
        code = 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    _main(*sys.argv[1:])
