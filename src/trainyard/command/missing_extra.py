"""Say how to install an extra of this distribution, in the way in which it was installed itself.

The distribution is called `trainyard-ci`; the package `trainyard` of an index is another project.
"""

import json
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "trainyard-ci"
_LOCKED = ("train", "cluster", "sign", "images")  # extras in the lock of a checkout


def extra_of(module: str) -> str:
    """Return the extra that declares the distribution of a module; empty if none does."""
    try:
        declared = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return ""
    top = module.partition(".")[0]
    name = {"websocket": "websocket-client"}.get(top, top.replace("_", "-"))
    pattern = re.compile(rf"{re.escape(name)}(?![\w-]).*extra == ['\"](?P<extra>\w+)['\"]", re.IGNORECASE)
    return next((found["extra"] for each in declared if (found := pattern.match(each))), "")


def install_command(extra: str) -> str:
    """Return the command that adds an extra, from the origin that the installer recorded.

    https://packaging.python.org/en/latest/specifications/direct-url/
    """
    own, prefix = metadata.distribution(DISTRIBUTION), Path(sys.prefix)
    origin = json.loads(own.read_text("direct_url.json") or "{}")
    url = re.sub(r"//[^/@]*:[^/@]*@", "//", origin.get("url", ""))  # without a password
    root = Path(unquote(urlsplit(url).path)) if origin.get("dir_info", {}).get("editable") else None
    if root and extra in _LOCKED and prefix == root / ".venv":
        return f"make -C {shlex.quote(str(root))} install"
    if "vcs_info" in origin:  # the same commit, so that only the extra is added
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    url += f"#subdirectory={origin['subdirectory']}" if "subdirectory" in origin else ""
    installer = [sys.executable, "-m", "pip", "install"]
    if (prefix / "uv-receipt.toml").is_file():
        installer = ["uv", "tool", "install"]
    elif (own.read_text("INSTALLER") or "").strip() == "uv":
        installer = ["uv", "pip", "install", "--python", sys.executable]
    if root:
        return shlex.join([*installer, "--editable", f"{root}[{extra}]"])
    named = f"{DISTRIBUTION}[{extra}]"
    return shlex.join([*installer, f"{named} @ {url}" if url else f"{named}=={own.version}"])
