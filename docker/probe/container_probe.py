"""Run inside a container of an image: says as JSON what imports, loads and computes there.

Its one argument is a JSON object: the checks to make, and the packages of the image's lock (none if it has no
lock that is known).
`scripts/check_image.py` sends it on stdin. It imports nothing of this package, which may not be in the image.
Every check is tried; one that fails or crashes is a result with a message, never the end of the probe.
"""

import ctypes
import ctypes.util
import glob
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

MARK = "TRAINYARD-PROBE "
_PLUGINS = ("libnccl-net.so", "libnccl-net-ofi.so", "libnccl-net-aws-ofi-nccl.so")
_PLUGIN_FOLDERS = (
    *("/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu"),
    *("/opt/aws-ofi-nccl/lib", "/opt/amazon/aws-ofi-nccl/lib"),
)
_NO_MODULE = ("setuptools", "pip", "wheel", "uv")
_SMALL = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
"""The model of the forward and backward pass."""
_DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")
"""Libraries of the driver, which the host gives to a container with a GPU."""


class UnknownError(Exception):
    """Nothing states what would be right, so the check has no verdict."""


def _demanded(asked: dict[str, Any]) -> dict[str, str] | None:
    """The packages of the lock for the Python of the image; None without a lock."""
    if asked["packages"] is None:
        return None
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python not in asked["packages"]:
        raise UnknownError(f"the lock was not read for Python {python}")
    found: dict[str, str] = asked["packages"][python]
    return found


def _installed() -> dict[str, importlib.metadata.Distribution]:
    found: dict[str, importlib.metadata.Distribution] = {}
    for each in importlib.metadata.distributions():
        name = (each.metadata["Name"] or "").lower().replace("_", "-").replace(".", "-")
        found.setdefault(name, each)
    return found


def versions(asked: dict[str, Any]) -> str:
    """Every package of the lock is installed in its version."""
    demanded, found = _demanded(asked), _installed()
    if demanded is None:
        raise UnknownError(f"no lock is known: {len(found)} packages are installed, no version is compared")
    wrong = [
        f"{name} {found[name].version if name in found else 'missing'} instead of {version}"
        for name, version in demanded.items()
        if name not in found or found[name].version != version
    ]
    if wrong:
        raise AssertionError(f"{len(wrong)} differ from the lock: " + "; ".join(wrong[:10]))
    return f"{len(demanded)} packages have the versions of the lock"


def imports(asked: dict[str, Any]) -> str:
    """Everything that the lock names can be imported; without a lock, what was installed by its name."""
    failed, count, demanded = [], 0, _demanded(asked)
    if demanded is None:
        found = _installed()
        names = [name for name, each in found.items() if each.read_text("REQUESTED") is not None]
        names += ["torch"] if "torch" in found and "torch" not in names else []
    else:
        names = list(demanded)
    without_driver = not glob.glob("/dev/nvidia[0-9]*")
    for name in names:
        for module in _modules(name):
            count += 1
            try:
                importlib.import_module(module)
            except BaseException as error:  # noqa: BLE001 - a package may raise anything, even SystemExit
                if without_driver and any(library in str(error) for library in _DRIVER):
                    continue  # the machine has no driver, which says nothing about the image
                failed.append(f"{module} of {name}: {type(error).__name__}: {str(error)[:200]}")
    if failed:
        raise AssertionError(f"{len(failed)} cannot be imported: " + "; ".join(failed[:10]))
    if demanded is None and not count:
        raise UnknownError("no lock is known, and nothing says what was installed by its name")
    return f"{count} modules of {len(names)} packages import"


def _modules(name: str) -> list[str]:
    """The module of a package's own name, else its top modules; none where it only carries libraries.

    A package may bring others beside its own that want more, as slack-sdk brings its predecessor.
    """
    if name in _NO_MODULE:
        return []
    try:
        package = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return []
    tops = (package.read_text("top_level.txt") or "").split()
    if not tops:
        files = [str(file) for file in package.files or ()]
        tops = sorted({f.split("/")[0] for f in files if f.endswith("/__init__.py") and f.count("/") == 1})
    usable = [top for top in tops if top.isidentifier() and not top.startswith("_")]
    own = [top for top in usable if top.lower() == name.replace("-", "_")]
    return [] if name.startswith("nvidia-") else own or usable[:3]


def _require_torch(asked: dict[str, Any]) -> None:
    """Raise AssertionError if the image has no torch, so that nothing can train; UnknownError if it may."""
    if importlib.util.find_spec("torch") is None:
        says = f"torch is not in the image (Python {platform.python_version()}, {sys.executable})"
        raise UnknownError(says) if asked.get("no_torch") else AssertionError(says)


def torch_imports(asked: dict[str, Any]) -> str:
    """torch is in the image and imports."""
    _require_torch(asked)
    import torch

    return f"torch {torch.__version__}"


def cuda(asked: dict[str, Any]) -> str:
    """torch is built with CUDA; where the container has a GPU, it computes."""
    _require_torch(asked)
    import torch

    if torch.version.cuda is None:
        if asked["cpu"]:
            return f"torch {torch.__version__} is built for CPU, as was asked"
        raise AssertionError(f"torch {torch.__version__} is built without CUDA")
    if not torch.cuda.is_available():
        if glob.glob("/dev/nvidia[0-9]*"):
            raise AssertionError("there is a GPU, and torch.cuda.is_available() is False: see the driver")
        if asked["gpus"]:
            raise AssertionError("a GPU was requested, and the container has none: see the machine's driver")
        return f"torch {torch.__version__} with CUDA {torch.version.cuda}; no GPU here, so none was used"
    for number in range(torch.cuda.device_count()):
        size = 256
        ones = torch.ones(size, size, device=f"cuda:{number}")
        assert float((ones @ ones)[0, 0]) == size
    name = torch.cuda.get_device_name(0)
    return f"CUDA {torch.version.cuda} computes on {torch.cuda.device_count()} x {name}"


def nccl(asked: dict[str, Any]) -> str:
    """The loader finds NCCL, and the version is torch's own."""
    _require_torch(asked)
    import torch

    if torch.version.cuda is None and asked["cpu"]:
        return "torch is built for CPU: there is no NCCL"
    wheel = glob.glob(
        os.path.join(os.path.dirname(torch.__file__), "..", "nvidia", "nccl", "lib", "libnccl.so.2")
    )
    library = ctypes.CDLL(wheel[0] if wheel else "libnccl.so.2")
    number = ctypes.c_int()
    assert library.ncclGetVersion(ctypes.byref(number)) == 0, "ncclGetVersion failed"
    loaded = (number.value // 10000, number.value // 100 % 100, number.value % 100)
    compiled = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    if tuple(compiled)[:2] != loaded[:2]:
        raise AssertionError(f"NCCL {loaded} is loaded, torch is compiled with {compiled}")
    return "NCCL " + ".".join(str(part) for part in loaded)


def efa(asked: dict[str, Any]) -> str:
    """The loader finds the EFA plugin of NCCL, and what it is linked with."""
    folders = [one for one in os.environ.get("LD_LIBRARY_PATH", "").split(":") if one]
    tried = []
    for name in _PLUGINS:
        for place in (name, *(os.path.join(folder, name) for folder in folders)):
            try:
                ctypes.CDLL(place)
            except OSError as error:
                tried.append(str(error))
                continue
            return f"{place} loads"
    there = [f for folder in _PLUGIN_FOLDERS for name in _PLUGINS if os.path.exists(f := f"{folder}/{name}")]
    if there:
        why = next((one for one in tried if "cannot open shared object file" not in one), "")
        raise AssertionError(f"{there[0]} is there, but the loader does not find it (LD_LIBRARY_PATH). {why}")
    if not asked["efa"]:
        return "no EFA plugin, and none was asked for"
    raise AssertionError("there is no EFA plugin (aws-ofi-nccl): NCCL would take TCP")


def _require_transformers(asked: dict[str, Any]) -> None:
    """Raise UnknownError if the image has torch, and neither it nor its lock has transformers."""
    _require_torch(asked)
    if importlib.util.find_spec("transformers") is None and "transformers" not in (_demanded(asked) or {}):
        raise UnknownError("transformers is not in the image, and no lock demands it: no model was made")


def model_configuration(asked: dict[str, Any]) -> str:
    """transformers makes the configuration of a model."""
    _require_transformers(asked)
    from transformers import AutoConfig

    config = AutoConfig.for_model("llama", **_SMALL)
    return (
        f"{config.model_type}: num_hidden_layers {config.num_hidden_layers}, hidden_size {config.hidden_size}"
    )


def forward_backward(asked: dict[str, Any]) -> str:
    """A small model computes a finite loss and gradients."""
    _require_transformers(asked)
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = LlamaForCausalLM(LlamaConfig(**_SMALL)).to(device)
    tokens = torch.randint(0, _SMALL["vocab_size"], (2, 16), device=device)
    loss = network(input_ids=tokens, labels=tokens).loss
    loss.backward()
    gradients = [p.grad for p in network.parameters()]
    if not torch.isfinite(loss) or any(g is None or not torch.isfinite(g).all() for g in gradients):
        raise AssertionError(f"loss {loss.item()}, or a gradient, is not finite")
    return f"loss {loss.item():.3f} on {device}, {len(gradients)} gradients are finite"


def compile_function(asked: dict[str, Any]) -> str:
    """torch.compile works on a GPU; without one, what triton builds its launchers with is there."""
    _require_torch(asked)
    import torch

    if torch.cuda.is_available():
        doubled = torch.compile(lambda value: torch.sin(value) * 2)(torch.ones(64, device="cuda"))
        assert torch.isfinite(doubled).all()
        return "torch.compile made a kernel, and its result is finite"
    if importlib.util.find_spec("triton") is None:
        raise UnknownError("triton is not in the image, and there is no GPU: nothing was compiled")
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    headers = os.path.join(sysconfig.get_paths()["include"], "Python.h")
    missing = [] if compiler else ["a C compiler"]
    missing += [] if os.path.exists(headers) else [f"Python's headers ({headers})"]
    if missing:
        raise AssertionError(f"torch.compile would stop: triton needs {' and '.join(missing)}")
    return f"triton has {compiler} and Python's headers; no GPU here, so no kernel was made"


def collective(asked: dict[str, Any]) -> str:
    """Two processes sum a tensor: gloo, or NCCL where there are two GPUs."""
    _require_torch(asked)
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(2):
            child = os.fork()
            if child == 0:
                os._exit(_summed(rank, f"{folder}/store"))
            children.append(child)
        end, codes = time.monotonic() + 120, []
        for child in children:
            done, status = 0, 0
            while not done and time.monotonic() < end:
                done, status = os.waitpid(child, os.WNOHANG)
                time.sleep(0.05)
            if not done:
                os.kill(child, 9)
            codes.append(os.waitstatus_to_exitcode(status) if done else "no end within 120 s")
    if codes != [0, 0]:
        raise AssertionError(f"two processes did not sum a tensor: {codes}")
    return "two processes summed a tensor"


def _summed(rank: int, store: str) -> int:
    try:
        import torch
        import torch.distributed as distributed

        nccl = len(glob.glob("/dev/nvidia[0-9]*")) > 1
        distributed.init_process_group(
            "nccl" if nccl else "gloo", init_method=f"file://{store}", rank=rank, world_size=2
        )
        value = torch.tensor([rank + 1.0], device=f"cuda:{rank}" if nccl else "cpu")
        distributed.all_reduce(value)
        return 0 if float(value) == 3.0 else 1
    except BaseException:  # noqa: BLE001 - it is another process, whose code is all that is seen
        traceback.print_exc()
        return 2


CHECKS: dict[str, Callable[[dict[str, Any]], str]] = {
    "collective": collective,
    "versions": versions,
    "imports": imports,
    "torch": torch_imports,
    "cuda": cuda,
    "nccl": nccl,
    "efa": efa,
    "model-configuration": model_configuration,
    "forward-backward": forward_backward,
    "compile": compile_function,
}
"""Collective goes first: it forks, and a child of a process that used a GPU cannot use one."""


def run(asked: dict[str, Any]) -> None:
    facts = {"python": platform.python_version(), "user": os.getuid(), "machine": platform.machine()}
    print("\n" + MARK + json.dumps({"facts": facts}), flush=True)
    for name in [one for one in CHECKS if one in asked["checks"]]:
        begun = time.monotonic()
        try:
            result: dict[str, Any] = {"ok": True, "says": CHECKS[name](asked)}
        except UnknownError as error:
            result = {"ok": None, "says": str(error)}
        except BaseException as error:  # noqa: BLE001 - the probe goes on with the next check
            words = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            result = {"ok": False, "says": words[:2000]}
        result |= {"check": name, "seconds": round(time.monotonic() - begun, 3)}
        print("\n" + MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
