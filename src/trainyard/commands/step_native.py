"""Build the C++ kernels in native/ with CMake, then their GoogleTest suite, and run it.

The library is built before the tests, so that it also exists on machines without GoogleTest. The package
finds it in native/build. It is optional: without it NumPy computes the same bits.

Reads:      native/; cmake, a C++17 compiler, ninja if it is installed, GoogleTest unless --no-tests
Writes:     the build directory: native/build, or native/build-sanitized, which Python must not load
Exit codes: 0 built and every test passed; 1 a target does not compile or a test failed; 2 cmake is missing,
            or cannot configure (no compiler, no GoogleTest)
Example:    trainyard step native --jobs 2
"""

import argparse
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from trainyard.command import arguments
from trainyard.command import output as command_output
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.command.parser import script_parser
from trainyard.errors import CheckFailedError, ConfigError
from trainyard.gateways.process import run_program

STEP_SECONDS = 1800
INSTALL = (
    "Debian, Ubuntu: apt-get install cmake ninja-build g++ libgtest-dev; macOS: brew install cmake googletest"
)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--build-dir", type=arguments.path, metavar="DIR", help="default: see above")
    jobs = "number of parallel compilers; default: 2"
    parser.add_argument("--jobs", type=arguments.processes, default=2, metavar="N", help=jobs)
    parser.add_argument("--no-tests", action="store_true", help="build the library only; needs no GoogleTest")
    parser.add_argument("--sanitize", action="store_true", help="check addresses and undefined behaviour")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    args = parser.parse_args(argv)
    args.build_dir = args.build_dir or REPOSITORY_ROOT / "native" / (
        "build-sanitized" if args.sanitize else "build"
    )
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    command_output.configure_logging(args.log_level)
    steps = plan(args)
    if args.dry_run:
        for _, line in steps:
            print(shlex.join(line))
        return 0
    for program in ("cmake", "ctest"):
        if shutil.which(program) is None:
            raise ConfigError(f"{program} was not found; it is needed to build the native kernels. {INSTALL}")
    for phase, line in steps:
        run(phase, line)
    return 0


def plan(args: argparse.Namespace) -> list[tuple[str, list[str]]]:
    """Return the commands of the build, by phase, in order."""
    build, jobs = str(args.build_dir), str(args.jobs)
    switches = {"ENABLE_TESTING": not args.no_tests, "SANITIZE": args.sanitize}
    defined = [f"-D{name}={'ON' if on else 'OFF'}" for name, on in switches.items()]
    configure = [
        "cmake",
        "-S",
        str(REPOSITORY_ROOT / "native"),
        "-B",
        build,
        *generator(args.build_dir),
        *defined,
    ]
    compile_ = ["cmake", "--build", build, "--parallel", jobs]
    steps = [("configure", configure), ("library", compile_)]
    if args.no_tests:
        return steps
    ctest = ["ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error"]
    return [*steps, ("tests", [*compile_, "--target", "all_tests"]), ("ctest", ctest)]


def generator(build: Path) -> list[str]:
    """Choose Ninja if it is installed; a configured build directory keeps its generator."""
    configured = (build / "CMakeCache.txt").is_file()
    return [] if configured or shutil.which("ninja") is None else ["-G", "Ninja"]


def run(phase: str, line: list[str]) -> None:
    done = run_program(line, seconds=STEP_SECONDS)
    if not done.ok:
        printed = "\n".join(filter(None, (done.stdout.strip(), done.stderr.strip())))
        kind = ConfigError if phase == "configure" else CheckFailedError
        raise kind(f"{printed}\n{shlex.join(line)} failed ({phase}); its output is above.")
    command_output.announce(phase, summary(phase, done.stdout), "ok")


def summary(phase: str, output: str) -> str:
    """Summarise the output of a successful phase in one line."""
    if phase == "ctest":
        return next((line for line in output.splitlines() if "tests passed" in line), "passed")
    return {"configure": "configured", "library": "libtrainyard_kernels built", "tests": "tests built"}[phase]
