#!/bin/sh
# Make or repair the Python environment that Trainyard runs in: install the pinned uv, then let uv make the environment
# from the locks. `make install` and every target that needs Python call it. Prints nothing when nothing is to be done.
#
# It needs a POSIX shell, and a Python 3.8 or newer that has venv or pip, or any uv. It takes a Python from 3.11 to 3.13
# of a runner's tool cache or of the path, and prefers one with its headers, which torch.compile needs. Without one, uv
# downloads it. It judges by content and never by time stamps: the environment is made again when its Python does
# not run or the folder was moved or copied, and the packages are installed again when the lock changed or one is missing.
#
# Reads:      VENV, UV_HOME, PYTHON; PYTHON_NAMED (not empty: no other Python than PYTHON is used); the locks; the
#             variables of pip and uv for indexes, proxies and retries; RUNNER_TOOL_CACHE, which GitHub's runner sets
# Writes:     UV_HOME/bin/uv; VENV, with TARGET.stamp: the checksums of the locks and the packages as installed;
#             for development also the Node packages of the tests
# Exit codes: 0 the environment is as locked; 2 no Python can be used, or VENV holds something else; 4 a package, uv or
#             a Python could not be downloaded
# Example:    VENV=.venv UV_HOME=.uv PYTHON=python3 sh scripts/install_environment.sh training
set -eu

target=$1 # training; development: the same and the tools that judge the code; core: what does not train
uv=$UV_HOME/bin/uv
run=$VENV/bin/python
node_tools=tests/workflows/expressions # for tests only; without npm those are skipped
pinned=$(sed -n 's/^uv==//p' requirements-uv.in)
fits='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
compiles="import os, sys, sysconfig; sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 13)
  and os.path.exists(sysconfig.get_path('include', 'posix_prefix') + '/Python.h')))"
# The interpreter behind a virtual environment: VENV may be the active one, and is about to be cleared.
base='import sys; print(sys._base_executable)'
version='import sys; print(sys.version)'
quiet=--quiet
if [ -t 2 ]; then quiet=; fi # uv shows its progress on a terminal

say() { # in the form of trainyard.command.output.announce
  if [ -n "$quiet" ]; then printf '%s INFO  install: %s\n' "$(date +%H:%M:%S)" "$1" >&2; fi
  if [ -z "$quiet" ]; then printf '  %-13s %s\n' install "$1" >&2; fi
}

fail() { # code, message
  printf '%s\n' "$2" >&2
  exit "$1"
}

first_that() { # code: print the first Python here that runs it without an error
  # shellcheck disable=SC2153
  for candidate in "${RUNNER_TOOL_CACHE:-}"/Python/3.1[123].*/*/bin/python3 \
    "$PYTHON" python3 python3.11 python3.12 python3.13; do
    if "$candidate" -c "$1" >/dev/null 2>&1; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

find_python() { # set python to an interpreter that fits, or let uv use or download its own
  managed=
  if [ -n "$PYTHON_NAMED" ]; then python=$PYTHON; else python=$(first_that "$compiles" || first_that "$fits") || :; fi
  if [ -n "$python" ]; then python=$("$python" -c "$base"); else managed=--managed-python python=3.11; fi
}

install_uv() { # with whatever can install a wheel; the hash is checked in each case
  say "uv $pinned, which installs everything else"
  new=$UV_HOME/new
  rm -rf "$new"
  mkdir -p "$UV_HOME/bin"
  set -- --quiet --require-hashes --no-deps -r requirements-uv.txt
  failed="uv $pinned could not be installed: see above. Behind a proxy or with a package index of your own, set it for pip
(PIP_INDEX_URL, HTTPS_PROXY), then run make again."
  if helper=$(first_that 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 8))') &&
    "$helper" -m venv "$new"; then
    PIP_USER=0 "$new/bin/python" -m pip install "$@" || fail 4 "$failed"
  elif helper=$(first_that 'import sys, pip; sys.exit(sys.version_info < (3, 8))'); then
    # Debian and Ubuntu keep ensurepip in a package of its own, python3-venv.
    rm -rf "$new"
    PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 "$helper" -m pip install --target "$new" "$@" || fail 4 "$failed"
  elif command -v uv >/dev/null; then
    find_python
    # shellcheck disable=SC2086 # a flag or none
    uv venv --quiet --no-project --clear $managed --python "$python" "$new" || fail 4 "$failed"
    uv pip install --python "$new/bin/python" "$@" || fail 4 "$failed"
  else
    fail 2 "uv cannot be installed: no Python here has venv or pip. On Debian and Ubuntu: sudo apt install python3-venv.
Elsewhere install Python 3.11, 3.12 or 3.13, or uv. Then run make again."
  fi
  mv -f "$new/bin/uv" "$uv"
  rm -rf "$new"
}

place() { (cd "$VENV" && pwd -P); }

is_usable() { # this script made the environment, in this folder, with a Python that still runs
  "$run" -I -c "$fits" 2>/dev/null && [ "$(cat "$VENV/place.stamp" 2>/dev/null)" = "$(place)" ] || return 1
  [ -z "$PYTHON_NAMED" ] || [ "$("$run" -I -c "$version")" = "$("$PYTHON" -c "$version")" ]
}

make_environment() {
  if [ "$VENV" != .venv ] && [ -n "$(ls -A "$VENV" 2>/dev/null)" ] && [ ! -f "$VENV/place.stamp" ]; then
    fail 2 "VENV=$VENV holds something that Trainyard did not make: name a new or an empty folder."
  fi
  if [ -e "$VENV" ]; then say "$VENV is made again: it was moved, or its Python is another one or does not run"; fi
  find_python
  # shellcheck disable=SC2086 # flags or none
  "$uv" venv $quiet --no-project --clear --force $managed --python "$python" "$VENV" ||
    fail 4 "$VENV could not be made: see above. Trainyard needs Python 3.11, 3.12 or 3.13. Install one with the package
manager of this system, or name one: make PYTHON=/path/to/python3.11"
  place >"$VENV/place.stamp"
}

locks() {
  if [ "$target" = core ]; then echo requirements-core.txt; else echo requirements-training.txt; fi
  if [ "$target" = development ]; then echo requirements-development.txt; fi
}

state() { # of the clone, of what decides what is installed, and of what is installed
  pwd -P
  # shellcheck disable=SC2046 # names of files without spaces
  cksum $(locks) pyproject.toml scripts/install_environment.sh
  # shellcheck disable=SC2086 # names of folders without spaces
  if [ "$target" = development ]; then (for folder in $node_tools; do cksum "$folder/package-lock.json"; done); fi
  (cd "$VENV" && echo lib/python3*/site-packages/*.dist-info | tr ' ' '\n')
}

is_current() { # packages beside those of the lock do not count: people add a debugger
  [ -s "$VENV/$target.stamp" ] && ! state 2>/dev/null | grep -qvxFf - "$VENV/$target.stamp"
}

install_packages() {
  say "the packages of the lock$([ "$target" = core ] || echo ", some 5 GB on Linux the first time")"
  rm -f "$VENV/core.stamp" "$VENV/training.stamp" "$VENV/development.stamp"
  # shellcheck disable=SC2046,SC2086 # names without spaces, and a flag or none
  { "$uv" pip sync $quiet --python "$run" --require-hashes $(locks) &&
    "$uv" pip install --quiet --python "$run" --no-deps --no-build-isolation --editable .; } ||
    fail 4 "The packages of the lock could not be installed: see above. What was downloaded is kept: run make again."
  # Python decodes .pth files by the locale. An absolute path with an umlaut keeps it from starting in the C locale.
  if [ "$VENV" = .venv ] && [ ! -L .venv ]; then
    for each in .venv/lib/python3*/site-packages/__editable__.trainyard*.pth; do echo ../../../../src >"$each"; done
  fi
  if [ "$target" = development ]; then
    for folder in $node_tools; do
      npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund --silent ||
        echo "npm could not install $folder: the tests that need it will be skipped" >&2
    done
  fi
  wanted=$target
  for target in $([ "$wanted" != development ] || echo training) "$wanted"; do
    state >"$VENV/$target.new"
    mv -f "$VENV/$target.new" "$VENV/$target.stamp"
  done
  say "done: $VENV"
}

if [ -n "$PYTHON_NAMED" ] && ! "$PYTHON" -c "$fits" 2>/dev/null; then
  fail 2 "PYTHON=$PYTHON is not a Python 3.11, 3.12 or 3.13 that runs. Without PYTHON= make looks for one."
fi
[ "$("$uv" --version 2>/dev/null | cut -d ' ' -f 2)" = "$pinned" ] || install_uv
# An environment has what smaller targets need; installing one of those would remove the rest.
if [ "$target" = core ] && [ -f "$VENV/training.stamp" ]; then target=training; fi
if [ "$target" = training ] && [ -f "$VENV/development.stamp" ]; then target=development; fi
is_usable || make_environment
is_current || install_packages
