# Two commands do everything: `make train` trains and proves a model, `make test` passes every test.
# `make help` lists the rest, and what can be changed. Needs a Python, git and make; all else comes from the locks.

# Every shell receives SET as it was given: nothing in it is expanded. This must be the first assignment.
SET ?=
override SET := $(value SET)
export SET

VARIABLES := CONFIG SET STORE RUNS RUN_DIR PYTHON VENV UV_HOME TESTS COVERAGE JOBS
# Make accepts any name as a variable, so a misspelt one would change nothing without notice: it is refused. Variables
# that other programs read are accepted.
PASSED := V VERBOSE SHELL CC CXX CI HOME PATH TMPDIR LANG TERM COLUMNS NO_COLOR FORCE_COLOR ACTIONLINT MAKE% CMAKE_% \
  UV_CACHE% UV_INDEX% UV_DEFAULT% UV_EXTRA% UV_OFFLINE PIP_% PYTHONPATH PYTHONW% PYTHONH% PYTEST_% TRAINYARD_% CUDA% NVIDIA_% NCCL_% \
  FI_% GLOO_% TORCH% PYTORCH_% OMP_% MKL_% HF_% TOKENIZERS_% WANDB_% TENSORBOARD_% AWS_% SLACK_% GITHUB_% GH_% GIT_% \
  SSL_% XDG_% LD_% LC_% NPM_% npm_% NODE_% %FLAGS %_PROXY %_proxy
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
UNKNOWN := $(if $(filter 0,$(MAKELEVEL)),$(filter-out $(VARIABLES) $(PASSED),$(GIVEN)))
ifneq ($(UNKNOWN),)
$(error $(UNKNOWN) is not a variable of this Makefile, which knows $(VARIABLES). A setting of the configuration is \
given as SET="a.b=1", a variable of the environment in front: NAME=… make …. Nothing was started)
endif

##  CONFIG    the configuration; default: configs/smoke.yaml
CONFIG ?= configs/smoke.yaml
##  SET       settings that replace the configuration's: SET="a.b=1 c.d=2"; a value
##            with spaces is quoted as in a shell: SET='model.name="my model" c=1'.
##            Nothing is expanded: $, *, # and backquotes mean themselves
##  STORE     the URL of the store; default: artifacts.store of the configuration, else
##            the folder trainyard-store in this one
STORE ?=
##  RUNS      the folder of the runs; default: runs
RUNS ?= runs
##  RUN_DIR   the folder of the run; default: a new one in RUNS, and for make resume
##            the one that was last written to
RUN_DIR ?=

##  PYTHON    a Python 3.11, 3.12 or 3.13; default: python3 if it is one of these,
##            else another that is found, else one that uv fetches
PYTHON ?= python3
##  VENV      the environment; default: .venv
VENV ?= .venv
##  UV_HOME   the folder of uv, which installs everything; default: .uv
UV_HOME ?= .uv
##  TESTS     arguments of pytest for make test: TESTS="tests/unit -x"
TESTS ?=
##  COVERAGE  the least share of src that tests must run, in percent; default: it is
##            not measured, because tests take longer then
COVERAGE ?=
##  JOBS      how many tests run at once; default: twice as many as there are
##            processors, because many wait (make quick: as many as there are); at most 8
PROCESSORS = $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
test: JOBS ?= $(shell expr $(PROCESSORS) \* 2)
# Quick tests do not wait, and each process imports all of them before it runs its share.
quick: JOBS ?= $(PROCESSORS)

AT_ONCE = -n $(JOBS) --maxprocesses 8 --dist worksteal
MEASURED = $(if $(COVERAGE),--cov --cov-report=term:skip-covered --cov-fail-under=$(COVERAGE))

UV := $(UV_HOME)/bin/uv
INSTALL = VENV="$(VENV)" UV_HOME="$(UV_HOME)" PYTHON="$(PYTHON)" PYTHON_NAMED="$(filter command,$(origin PYTHON))" \
  sh scripts/install_environment.sh
RUN := $(VENV)/bin/python
EXPRESSIONS := tests/workflows/expressions

.PHONY: help install install-core install-dev train resume test quick coverage lint docs native native-sanitized lock clean
.DELETE_ON_ERROR:

help: ## list the commands and the variables
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 14
	@echo
	@echo 'Variables, given after the command (make train CONFIG=configs/grpo.yaml):'
	@sed -n 's/^##  //p' Makefile

install: $(VENV)/training.stamp ## the environment that trains, from requirements-training.txt

install-core: $(VENV)/core.stamp ## the environment without torch, from requirements-core.txt

install-dev: $(VENV)/development.stamp ## the same, and the tools that judge the code

# `exec` replaces make's shell, so that signals reach Python.
# A program that a configuration names, such as `python`, is that of the environment.
train resume: export PATH := $(abspath $(VENV))/bin:$(PATH)
PIPELINE = @exec "$(RUN)" -m trainyard run --settings "$$SET" --runs "$(RUNS)" --store "$(STORE)"

train: $(VENV)/training.stamp ## train, store and prove a model: CONFIG=, SET=, STORE=, RUN_DIR=
	$(PIPELINE) --config "$(CONFIG)" $(if $(RUN_DIR),--run-dir "$(RUN_DIR)")

resume: $(VENV)/training.stamp ## resume the run that was last written to, or RUN_DIR=
	$(PIPELINE) --run-dir "$(or $(RUN_DIR),newest)" $(if $(filter command,$(firstword $(origin CONFIG))),--config "$(CONFIG)")

# Tests start several hundred Pythons. Where the machine forbids compiled files, each would compile torch again: 2 s.
test quick: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/development.stamp ## every test
	UV="$(abspath $(UV))" "$(RUN)" -m pytest $(AT_ONCE) $(MEASURED) $(TESTS)

quick: $(VENV)/development.stamp ## the unit tests that start no process
	"$(RUN)" -m pytest $(AT_ONCE) tests/unit --quick $(TESTS)

coverage: $(VENV)/development.stamp ## judge the coverage of tests that ran separately (coverage-* files)
	"$(RUN)" -m coverage combine --keep coverage-*
	"$(RUN)" -m coverage report --skip-covered --fail-under=$(or $(COVERAGE),95)

lint: $(VENV)/development.stamp ## ruff, mypy, configurations, licences, generated files, and the site
	"$(VENV)/bin/ruff" format --check .
	"$(VENV)/bin/ruff" check .
	"$(VENV)/bin/mypy"
	"$(RUN)" tools/write_config_schema.py --check
	"$(RUN)" tools/write_script_reference.py --check
	"$(RUN)" tools/write_failure_reference.py --check
	"$(RUN)" tools/write_locks.py --check
	NO_MKDOCS_2_WARNING=1 "$(RUN)" -m mkdocs build --strict --quiet
	"$(VENV)/bin/pip-licenses" --python "$(RUN)" >/dev/null
	"$(VENV)/bin/trainyard" config check

docs: $(VENV)/development.stamp ## check the documents, and those that are generated
	"$(RUN)" -m pytest tests/unit/test_docs.py
	"$(RUN)" tools/write_config_schema.py --check
	"$(RUN)" tools/write_script_reference.py --check
	"$(RUN)" tools/write_failure_reference.py --check

# The library is built before the tests, so that it also exists on machines without GoogleTest.
native: ## build and test the C++ kernels: cmake, a compiler, GoogleTest
	cmake -S native -B native/build -DENABLE_TESTING=ON
	cmake --build native/build --parallel 2
	cmake --build native/build --parallel 2 --target all_tests
	ctest --test-dir native/build --output-on-failure --no-tests=error

native-sanitized: # the same with memory and undefined behaviour checked, where Python does not look
	cmake -S native -B native/build-sanitized -DENABLE_TESTING=ON -DSANITIZE=ON
	cmake --build native/build-sanitized --parallel 2
	cmake --build native/build-sanitized --parallel 2 --target all_tests
	ctest --test-dir native/build-sanitized --output-on-failure --no-tests=error

lock: $(VENV)/training.stamp ## resolve the locks anew from their .in files
	UV="$(abspath $(UV))" "$(RUN)" tools/write_locks.py

clean: ## remove environments, runs, prepared data, the local store, kernels
	rm -rf "$(VENV)" "$(UV_HOME)" "$(RUNS)" data/prepared site trainyard-store native/build native/build-sanitized \
	  "$(EXPRESSIONS)/node_modules"

# The script compares content, not time stamps, and prints nothing if nothing is to be done.
$(VENV)/core.stamp: FORCE
	@$(INSTALL) core

$(VENV)/training.stamp: FORCE
	@$(INSTALL) training

$(VENV)/development.stamp: FORCE
	@$(INSTALL) development

.PHONY: FORCE
FORCE:
