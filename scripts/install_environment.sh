#!/bin/sh
# Make or mend the Python environment that Trainyard runs in, from the locks: what `make install` and every target that
# needs Python call first. Says nothing when there is nothing to do.
#
# It needs a POSIX shell and either a Python 3.8 or newer that brings venv or pip, or any uv. It installs the pinned uv,
# which makes the environment with a Python from 3.11 to 3.13. uv fetches such a Python when there is none here.
#
# It judges by content and never by time stamps: the environment is made anew when its interpreter is gone or does not
# fit, when the folder was moved or copied, or when another tool made it; and the packages are installed again when the
# lock changed or a package of it is missing. It never changes an interpreter: VENV/bin/python is a link to one that
# root may own and other people use too.
#
# Reads:      VENV, UV_HOME, PYTHON; PYTHON_NAMED (not empty: PYTHON was asked for, so no other one is taken); the locks
# Writes:     UV_HOME/bin/uv; VENV, with TARGET.stamp: the checksums of the locks and the packages as installed;
#             for development also the Node packages of the tests
# Exit codes: 0 the environment is as locked; 2 no Python fits, or VENV holds something else; 4 a package, uv or a
#             Python could not be fetched
# Example:    VENV=.venv UV_HOME=.uv PYTHON=python3 sh scripts/install_environment.sh training
set -eu

target=$1 # training; development: the same and the tools that judge the code; core: what does not train
uv=$UV_HOME/bin/uv
run=$VENV/bin/python
node_tools='tests/workflows/expressions tests/llama_cpp' # for tests only; without npm those are skipped
pinned=$(sed -n 's/^uv==//p' requirements-uv.in)
fits='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
# The interpreter behind a virtual environment: VENV may be the active one, and is about to be cleared.
path='import os, sys; base = getattr(sys, "_base_executable", None) or ""
print(base if os.path.exists(base) else sys.executable)'
version='import platform; print(platform.python_version())'

locks() {
  if [ "$target" = core ]; then
    echo requirements-core.txt
    return
  fi
  echo requirements-training.txt
  if [ "$target" = development ]; then echo requirements-development.txt; fi
}

on_terminal() { [ -t 2 ] && [ "${CI:-}" != true ]; }

say() { # in the form of trainyard.command.output.announce
  if on_terminal; then
    printf '  %-13s %s\n' install "$1" >&2
  else
    printf '%s INFO  install: %s\n' "$(date +%H:%M:%S)" "$1" >&2
  fi
}

fail() { # code, message
  printf '%s\n' "$2" >&2
  exit "$1"
}

first_that() { # code: print the first Python of those here that runs it without an error
  # shellcheck disable=SC2153
  for candidate in "$PYTHON" python3 python3.11 python3.12 python3.13; do
    if "$candidate" -c "$1" >/dev/null 2>&1; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

find_python() { # set python to a fitting interpreter; to nothing when there is none
  python=
  if [ -n "$PYTHON_NAMED" ]; then
    "$PYTHON" -c "$fits" 2>/dev/null ||
      fail 2 "$(what_is_wrong), and Trainyard needs Python 3.11, 3.12 or 3.13. Without PYTHON= make looks for one."
    python=$("$PYTHON" -c "$path")
  elif found=$(first_that "$fits"); then
    python=$("$found" -c "$path")
  elif [ -x "$uv" ]; then
    python=$("$uv" python find --quiet --system --no-python-downloads '>=3.11,<3.14' 2>/dev/null) || python=
  fi
}

what_is_wrong() { # with PYTHON
  if ! command -v "$PYTHON" >/dev/null; then
    echo "there is no $PYTHON"
  elif found=$("$PYTHON" -c "$version" 2>/dev/null); then
    echo "$PYTHON is Python $found"
  else
    echo "$PYTHON does not run"
  fi
}

may_write() { # folder, variable
  # shellcheck disable=SC2012 # only the owner is read
  [ ! -e "$1" ] || [ -w "$1" ] ||
    fail 2 "$1 belongs to $(ls -ld "$1" | awk '{ print $3 }') and you cannot write to it. Remove it (did sudo make it?),
or name another folder: make $2=…"
}

install_uv() { # with whatever can install a wheel; the hash is checked in each case
  may_write "$UV_HOME" UV_HOME
  find_python
  say "uv $pinned, which installs everything else"
  new=$UV_HOME/new
  rm -rf "$new"
  mkdir -p "$UV_HOME/bin"
  set -- --quiet --require-hashes --no-deps -r requirements-uv.txt
  if helper=$(first_that 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 8))') &&
    "$helper" -m venv "$new"; then
    PIP_USER=0 "$new/bin/python" -m pip install "$@" || no_uv
  elif helper=$(first_that 'import sys, pip; sys.exit(sys.version_info < (3, 8))'); then
    # Debian and Ubuntu keep ensurepip in a package of its own, python3-venv.
    rm -rf "$new"
    PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 "$helper" -m pip install --target "$new" "$@" || no_uv
  elif command -v uv >/dev/null; then
    rm -rf "$new"
    uv venv --quiet --no-project --python "${python:-3.11}" "$new" || no_uv
    uv pip install --python "$new/bin/python" "$@" || no_uv
  else
    fail 2 "uv cannot be installed: $(what_is_wrong), and no Python here has venv or pip.
On Debian and Ubuntu: sudo apt install python3-venv. Elsewhere install Python 3.11, 3.12 or 3.13, or uv. Then run make again."
  fi
  mv -f "$new/bin/uv" "$uv"
  rm -rf "$new"
}

no_uv() {
  rm -rf "$new"
  fail 4 "uv $pinned could not be installed: see above. Behind a proxy or with a package index of your own, set it for pip
(PIP_INDEX_URL, HTTPS_PROXY), then run make again."
}

place() { (cd "$VENV" && pwd -P); }

trouble_with_environment() { # print why VENV cannot be used as it is; nothing when it can
  if ! "$run" -I -c "$fits" 2>/dev/null; then
    found=$("$run" -I -c "$version" 2>/dev/null) && echo "its Python is $found" || echo "its Python does not run"
  elif [ ! -f "$VENV/pyvenv.cfg" ] || grep -qi '^include-system-site-packages *= *true' "$VENV/pyvenv.cfg"; then
    echo "another tool made it"
  elif [ ! -f "$VENV/place.stamp" ]; then
    echo "it was left half-made, or an older make made it"
  elif [ "$(cat "$VENV/place.stamp")" != "$(place)" ]; then
    echo "it was made at $(cat "$VENV/place.stamp")"
  elif [ -n "$PYTHON_NAMED" ] && [ "$("$run" -I -c "$version")" != "$("$PYTHON" -c "$version")" ]; then
    echo "PYTHON=$PYTHON is another one"
  fi
}

refuse_what_is_not_ours() {
  if [ "$VENV" = .venv ] || [ -f "$VENV/core.stamp" ] || [ -f "$VENV/place.stamp" ]; then
    return
  elif [ -d "$VENV" ] && [ -z "$(ls -A "$VENV")" ]; then
    return
  fi
  fail 2 "VENV=$VENV holds something that Trainyard did not make: name a new or an empty folder."
}

make_environment() {
  find_python
  if [ -n "$python" ]; then
    "$uv" venv --quiet --no-project --clear --force --python "$python" "$VENV" ||
      fail 2 "$VENV could not be made: see above."
  else
    say "$(what_is_wrong), and no Python 3.11 to 3.13 was found: uv fetches Python 3.11"
    "$uv" venv --no-project --clear --force --managed-python --python 3.11 "$VENV" ||
      fail 4 "Trainyard needs Python 3.11, 3.12 or 3.13: $(what_is_wrong), and uv could not fetch one (see above).
Install one with the package manager of this system, or name one: make PYTHON=/path/to/python3.11"
  fi
  place >"$VENV/place.stamp"
}

packages() { # a line for each that is installed
  for each in "$VENV"/lib/python3*/site-packages/*.dist-info; do
    echo "${each##*/}"
  done
}

state() { # of the clone, of what decides what is installed, and of what is installed
  pwd -P
  # shellcheck disable=SC2046 # names of files without spaces
  cksum $(locks) pyproject.toml scripts/install_environment.sh
  # shellcheck disable=SC2086 # names of folders without spaces
  if [ "$target" = development ]; then (for folder in $node_tools; do cksum "$folder/package-lock.json"; done); fi
  packages
}

is_current() { # packages beside those of the lock do not count: people add a debugger
  [ -s "$VENV/$target.stamp" ] && ! state 2>/dev/null | grep -qvxFf - "$VENV/$target.stamp"
}

count_pins() { # of all platforms together
  # shellcheck disable=SC2046
  cat $(locks) | sed -n 's/^\([a-z][^=]*\)==.*/\1/p' | sort -u | wc -l | tr -d ' '
}

size() { du -sk "$VENV" | awk '{ if ($1 < 1e6) printf "%.0f MB", $1 / 1e3; else printf "%.1f GB", $1 / 1e6 }'; }

# Python decodes .pth files by the locale. An absolute path with an umlaut keeps it from starting in the C locale.
name_source_relatively() {
  [ "$VENV" = .venv ] && [ ! -L .venv ] || return 0
  for each in .venv/lib/python3*/site-packages/__editable__.trainyard-*.pth; do
    echo ../../../../src >"$each"
  done
}

install_packages() {
  may_write "$VENV" VENV
  started=$(date +%s)
  if [ -f "$VENV/$target.stamp" ]; then
    say "what differs from the lock"
  else
    say "up to $(count_pins) packages from the lock$([ "$target" = core ] || echo ", some 5 GB on Linux")"
  fi
  rm -f "$VENV/core.stamp" "$VENV/training.stamp" "$VENV/development.stamp"
  quiet=--quiet
  if on_terminal; then quiet=; fi # shows what is fetched, and in the end every package
  # shellcheck disable=SC2046,SC2086 # names without spaces, and a flag or none
  "$uv" pip sync $quiet --python "$run" --require-hashes $(locks) || no_packages
  "$uv" pip install --quiet --python "$run" --no-deps --no-build-isolation --editable . || no_packages
  name_source_relatively
  if [ "$target" = development ]; then
    for folder in $node_tools; do
      npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund --silent ||
        echo "npm could not install $folder: the tests that need it will be skipped" >&2
    done
  fi
  write_stamps
  seconds=$(($(date +%s) - started))
  say "$(packages | wc -l | tr -d ' ') packages, $(size), in $((seconds / 60)):$(printf %02d $((seconds % 60)))"
}

no_packages() {
  fail 4 "The packages of the lock could not be installed: see above. What was fetched is kept: run make again."
}

write_stamps() {
  wanted=$target
  for target in $([ "$wanted" != development ] || echo training) "$wanted"; do
    state >"$VENV/$target.new"
    mv -f "$VENV/$target.new" "$VENV/$target.stamp"
  done
}

[ "$("$uv" --version 2>/dev/null | cut -d ' ' -f 2)" = "$pinned" ] || install_uv
# An environment has what smaller targets need; installing one of those would remove the rest.
if [ "$target" = core ] && [ -f "$VENV/training.stamp" ]; then target=training; fi
if [ "$target" = training ] && [ -f "$VENV/development.stamp" ]; then target=development; fi
[ -z "$PYTHON_NAMED" ] || find_python # one that does not fit is refused, even if nothing is to be done
if [ ! -e "$VENV" ]; then
  make_environment
elif why=$(trouble_with_environment) && [ -n "$why" ]; then
  refuse_what_is_not_ours
  may_write "$VENV" VENV
  say "$VENV is made anew: $why"
  make_environment
fi
is_current || install_packages
