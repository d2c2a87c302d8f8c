# Two commands do everything: `make train` trains and proves a model, `make test` passes every test.
# `make help` lists the rest. Needs Python 3.11 or newer, git and make; all else comes from the locks.

PYTHON ?= python3
VENV ?= .venv
UV_HOME ?= .uv
CONFIG ?= configs/smoke.yaml
SET ?=
space := $() $()
# A URL: what it cannot hold as it is, it holds by its code.
STORE ?= file://$(subst $(space),%20,$(subst %,%25,$(CURDIR)))/trainyard-store
RUNS ?= runs
ifeq ($(MAKECMDGOALS),resume)
# What was started is what goes on: the run that was last at work, with the configuration it began with.
RUN_DIR := $(shell ls -t "$(RUNS)"/*/run.json 2>/dev/null | head -n 1 | sed 's|/run\.json$$||')
CONFIG := $(RUN_DIR)/config.yaml
NOTHING = $(if $(RUN_DIR),There is no $(CONFIG),There is no run in $(RUNS) yet)
else
RUN_DIR ?= $(RUNS)/$(shell date +%Y%m%d-%H%M%S)-$(shell od -An -N2 -tx1 /dev/urandom | tr -d ' \n')
endif
RUN_DIR := $(RUN_DIR)

UV := $(UV_HOME)/bin/uv
RUN := $(VENV)/bin/python
EXPRESSIONS := tests/workflows/expressions
CONFIGURATION := --config "$(CONFIG)" $(addprefix --set ,$(SET))

.PHONY: help install install-dev train resume test coverage lint docs native lock clean
.DELETE_ON_ERROR:

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 14

install: $(VENV)/training.stamp ## the environment that trains, from requirements-training.txt

install-dev: $(VENV)/development.stamp ## the same, and the tools that judge the code

train: ## train, store and prove a model: CONFIG=, SET="a.b=1 c=2", STORE=, RUN_DIR=
resume: ## go on with the newest run of `make train` as it was started, or with RUN_DIR=
train resume: $(VENV)/training.stamp
	@test $@ = train || test -f "$(CONFIG)" || { echo "$(NOTHING): make train starts a run." >&2; exit 2; }
	@"$(RUN)" scripts/check_environment.py $(CONFIGURATION) --run-dir "$(RUN_DIR)" --store "$(STORE)"
	@"$(RUN)" scripts/check_readiness.py $(CONFIGURATION) --run-dir "$(RUN_DIR)" --store "$(STORE)" --run-number auto
	@"$(RUN)" scripts/prepare_data.py $(CONFIGURATION)
	@"$(RUN)" scripts/train.py $(CONFIGURATION) --run-dir "$(RUN_DIR)" --resume auto
	@"$(RUN)" scripts/training_artifact_sync.py --run-dir "$(RUN_DIR)" --store "$(STORE)" --run-number auto --once
	@"$(RUN)" scripts/prove_run.py --run-dir "$(RUN_DIR)" --store "$(STORE)" --run-number auto
	@"$(RUN)" scripts/training_dashboard.py "$(RUN_DIR)" --write
	@"$(RUN)" scripts/notify_slack.py succeeded --run-dir "$(RUN_DIR)"

test: $(VENV)/development.stamp ## every test, with coverage of src
	UV="$(abspath $(UV))" "$(RUN)" -m pytest --cov --cov-report=term:skip-covered --cov-fail-under=$(COVERAGE) $(TESTS)

COVERAGE ?= 95
TESTS ?=

coverage: $(VENV)/development.stamp ## judge the coverage of tests that ran apart, from their coverage-* files
	"$(RUN)" -m coverage combine --keep coverage-*
	"$(RUN)" -m coverage report --skip-covered --fail-under=$(COVERAGE)

lint: $(VENV)/development.stamp ## ruff, mypy, every configuration, and whether what is generated fits its sources
	"$(VENV)/bin/ruff" format --check .
	"$(VENV)/bin/ruff" check .
	"$(VENV)/bin/mypy"
	"$(RUN)" scripts/write_config_schema.py --check
	"$(RUN)" scripts/write_script_reference.py --check
	"$(RUN)" scripts/write_locks.py --check
	"$(RUN)" scripts/check_configs.py

docs: $(VENV)/development.stamp ## check the documents, and whether those that are generated fit their sources
	"$(RUN)" -m pytest tests/unit/test_docs.py
	"$(RUN)" scripts/write_config_schema.py --check
	"$(RUN)" scripts/write_script_reference.py --check

native: $(VENV)/training.stamp ## build the C++ kernels and run their tests; needs cmake, a compiler, GoogleTest
	"$(RUN)" scripts/build_native.py

lock: $(VENV)/training.stamp ## resolve the locks anew from their .in files
	UV="$(abspath $(UV))" "$(RUN)" scripts/write_locks.py

clean: ## remove environments, runs, prepared data, the local store and the built kernels
	rm -rf "$(VENV)" "$(UV_HOME)" "$(RUNS)" data/prepared trainyard-store native/build native/build-sanitized \
	  "$(EXPRESSIONS)/node_modules"

$(UV): requirements-uv.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is too old: Trainyard needs Python 3.11 or newer; make PYTHON=/path/to/python3.11" >&2; exit 2; }
	"$(PYTHON)" -m venv "$(UV_HOME)"
	"$(UV_HOME)/bin/python" -m pip install --quiet --require-hashes --no-deps -r requirements-uv.txt
	@touch "$@"

$(VENV)/bin/python: $(UV)
	"$(UV)" venv --quiet --allow-existing --python "$(PYTHON)" "$(VENV)"
	@touch "$@"

$(VENV)/training.stamp: requirements-training.txt pyproject.toml $(VENV)/bin/python
	"$(UV)" pip sync --quiet --python "$(RUN)" --require-hashes requirements-training.txt
	"$(UV)" pip install --quiet --python "$(RUN)" --no-deps --no-build-isolation --editable .
	@rm -f "$(VENV)/development.stamp"
	@touch "$@"

$(VENV)/development.stamp: requirements-development.txt $(EXPRESSIONS)/package-lock.json $(VENV)/training.stamp
	"$(UV)" pip sync --quiet --python "$(RUN)" --require-hashes requirements-training.txt requirements-development.txt
	"$(UV)" pip install --quiet --python "$(RUN)" --no-deps --no-build-isolation --editable .
	@npm ci --prefix $(EXPRESSIONS) --ignore-scripts --no-audit --no-fund --silent || \
	  echo "npm could not install $(EXPRESSIONS): the tests of if: conditions will be skipped" >&2
	@touch "$@"
