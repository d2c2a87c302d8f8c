# Two commands do everything: `make train` trains and proves a model, `make test` passes every test.
# `make help` lists the rest, and what can be changed. Needs a Python, git and make; all else comes from the locks.

# The text as it was given. This stands first: make may expand SET for every shell that it starts.
SET ?=
override SET := $(value SET)

VARIABLES := CONFIG SET STORE RUNS RUN_DIR PYTHON VENV UV_HOME TESTS COVERAGE JOBS
define newline


endef
# Make loses line breaks on the way to a shell, so they go as the control character of record separators.
separator := $(shell printf '\036')
quote = '$(subst ','\'',$(subst $(newline),$(separator),$1))'
# Make takes any name as a variable. One that is misspelt would change nothing, and nobody would notice.
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
UNKNOWN := $(filter-out $(VARIABLES),$(GIVEN))
ifneq ($(UNKNOWN),)
ifneq ($(shell printf '%s\n' $(call quote,$(UNKNOWN)) | awk -v known='$(VARIABLES)' \
  -v inner='$(filter-out 0,$(MAKELEVEL))' -f scripts/explain_variables.awk || echo refused),)
$(error Nothing was started)
endif
endif

##  CONFIG    the configuration; default: configs/smoke.yaml
CONFIG ?= configs/smoke.yaml
##  SET       settings in place of the configuration's: SET="a.b=1 c.d=2"; a value
##            with spaces is quoted as in a shell: SET='model.name="my model" c=1'.
##            Nothing is expanded: $, *, # and backquotes mean themselves
SETTINGS :=
ifneq ($(SET),)
SETTINGS := $(shell printf '%s\n' $(call quote,$(SET)) | awk -f scripts/split_settings.awk || echo refused)
ifeq ($(SETTINGS),refused)
$(error Nothing was started)
endif
endif
##  STORE     the URL of the store; default: the folder trainyard-store in this one
space := $() $()
# A URL: what it cannot hold as it is, it holds by its code.
STORE ?= file://$(subst $(space),%20,$(subst %,%25,$(CURDIR)))/trainyard-store
##  RUNS      the folder of the runs; default: runs
RUNS ?= runs
##  RUN_DIR   the folder of the run; default: a new one in RUNS, and for make resume
##            the one that was last at work
ifeq ($(MAKECMDGOALS),resume)
# What was started is what goes on: the run that was last at work, with the configuration it began with.
RUN_DIR := $(shell ls -t "$(RUNS)"/*/run.json 2>/dev/null | head -n 1 | sed 's|/run\.json$$||')
CONFIG := $(RUN_DIR)/config.yaml
NOTHING = $(if $(RUN_DIR),There is no $(CONFIG),There is no run in $(RUNS) yet)
else
RUN_DIR ?= $(RUNS)/$(shell date +%Y%m%d-%H%M%S)-$(shell od -An -N2 -tx1 /dev/urandom | tr -d ' \n')
endif
RUN_DIR := $(RUN_DIR)

##  PYTHON    a Python 3.11, 3.12 or 3.13; default: python3 if it is one of these,
##            else another that is found, else one that uv fetches
PYTHON ?= python3
##  VENV      the environment; default: .venv
VENV ?= .venv
##  UV_HOME   the folder of uv, which installs everything; default: .uv
UV_HOME ?= .uv
##  TESTS     what make test runs, in the words of pytest: TESTS="tests/unit -x"
TESTS ?=
##  COVERAGE  the least share of src that tests must run, in percent; default: it is
##            not measured, because tests take longer then
COVERAGE ?=
##  JOBS      how many tests run at once; default: twice as many as there are
##            processors, because many wait (make quick: one more); at most 4
PROCESSORS = $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
test: JOBS ?= $(shell expr $(PROCESSORS) \* 2)
quick: JOBS ?= $(shell expr $(PROCESSORS) + 1)

AT_ONCE = -n $(JOBS) --maxprocesses 4 --dist worksteal
MEASURED = $(if $(COVERAGE),--cov --cov-report=term:skip-covered --cov-fail-under=$(COVERAGE))

UV := $(UV_HOME)/bin/uv
INSTALL = VENV="$(VENV)" UV_HOME="$(UV_HOME)" PYTHON="$(PYTHON)" PYTHON_NAMED="$(filter command,$(origin PYTHON))" \
  sh scripts/install_environment.sh
RUN := $(VENV)/bin/python
EXPRESSIONS := tests/workflows/expressions
LLAMA_CPP := tests/llama_cpp
CONFIGURATION := --config "$(CONFIG)" $(SETTINGS)

.PHONY: help install install-dev train resume deploy-demo test quick coverage lint docs native lock clean
.DELETE_ON_ERROR:

help: ## list the commands and the variables
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 14
	@echo
	@echo 'Variables, which stand behind the command (make train CONFIG=configs/grpo.yaml):'
	@sed -n 's/^##  //p' Makefile

install: $(VENV)/training.stamp ## the environment that trains, from requirements-training.txt

install-dev: $(VENV)/development.stamp ## the same, and the tools that judge the code

# A step that fails is told as success is: with the report, where there is a run, and the command that goes on. Its exit
# code is the one that make names. A run that stopped early (75) is not judged: it is not a failure.
PROVE = "$(RUN)" scripts/prove_run.py --run-dir "$(RUN_DIR)" --store "$(STORE)" --run-number auto
REPORT = test ! -f "$(RUN_DIR)/run.json" || { "$(RUN)" scripts/training_dashboard.py "$(RUN_DIR)" --write; \
  test $$code = 75 && moment=stopped || moment=failed; \
  "$(RUN)" scripts/notify_slack.py $$moment --run-dir "$(RUN_DIR)"; }
TOLD = { code=$$?; trap : INT TERM; $(REPORT); exit $$code; }
JUDGED = { code=$$?; trap : INT TERM; test ! -f "$(RUN_DIR)/run.json" -o $$code = 75 || $(PROVE); $(REPORT); exit $$code; }
# The shell outlives a Ctrl-C, which reaches the step too, and passes a SIGTERM on to it. A step that starts ignores a
# Ctrl-C, as all jobs in the background; so it gets a SIGTERM two seconds later, which changes nothing if it noticed.
WAITED = step=$$!; trap '(sleep 2; kill -TERM $$step) >/dev/null 2>&1 &' INT; trap 'kill -TERM $$step' TERM; \
  while wait $$step; code=$$?; kill -0 $$step 2>/dev/null; do :; done; (exit $$code)

# What goes on with a run that make started is make; a store of your own is named again.
train resume: export TRAINYARD_STARTED_WITH = make $(if $(filter-out file,$(origin STORE)),'STORE=$(STORE)')
train: ## train, store and prove a model: CONFIG=, SET=, STORE=, RUN_DIR=
resume: ## go on with the run that was last at work, or with RUN_DIR=
train resume: $(VENV)/training.stamp
	@test $@ = train || test -f "$(CONFIG)" || { echo "$(NOTHING): make train starts a run." >&2; exit 2; }
	@test $@ = train || printf '  %-13s %s\n' resume "$(RUN_DIR)" >&2
	@"$(RUN)" scripts/check_environment.py $(CONFIGURATION) --run-dir "$(RUN_DIR)" --store "$(STORE)" || $(TOLD)
	@"$(RUN)" scripts/check_readiness.py $(CONFIGURATION) --run-dir "$(RUN_DIR)" --store "$(STORE)" \
	  --run-number auto || $(TOLD)
	@"$(RUN)" scripts/prepare_data.py $(CONFIGURATION) || $(TOLD)
	@"$(RUN)" scripts/train.py $(CONFIGURATION) --run-dir "$(RUN_DIR)" --resume auto & $(WAITED) || $(JUDGED)
	@"$(RUN)" scripts/training_artifact_sync.py --run-dir "$(RUN_DIR)" --store "$(STORE)" --run-number auto --once || \
	  $(JUDGED)
	@"$(RUN)" scripts/prove_run.py --run-dir "$(RUN_DIR)" --store "$(STORE)" --run-number auto || $(TOLD)
	@"$(RUN)" scripts/training_dashboard.py "$(RUN_DIR)" --write
	@"$(RUN)" scripts/notify_slack.py succeeded --run-dir "$(RUN_DIR)"

deploy-demo: $(VENV)/training.stamp ## a cluster from nothing, and a job on it (TRAINYARD_CONTROL_PLANE)
	"$(RUN)" scripts/deploy_demo.py $(CONFIGURATION) --runs "$(RUNS)"

# Tests start several hundred Pythons. Where the machine forbids compiled files, each would compile torch again: 2 s.
test quick: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/development.stamp ## every test
	UV="$(abspath $(UV))" "$(RUN)" -m pytest $(AT_ONCE) $(MEASURED) $(TESTS)

quick: $(VENV)/development.stamp ## the unit tests that start no process
	"$(RUN)" -m pytest $(AT_ONCE) tests/unit --quick $(TESTS)

coverage: $(VENV)/development.stamp ## judge the coverage of tests that ran apart (coverage-* files)
	"$(RUN)" -m coverage combine --keep coverage-*
	"$(RUN)" -m coverage report --skip-covered --fail-under=$(or $(COVERAGE),95)

lint: $(VENV)/development.stamp ## ruff, mypy, configurations, licences, and generated files
	"$(VENV)/bin/ruff" format --check .
	"$(VENV)/bin/ruff" check .
	"$(VENV)/bin/mypy"
	"$(RUN)" tools/write_config_schema.py --check
	"$(RUN)" tools/write_script_reference.py --check
	"$(RUN)" tools/write_locks.py --check
	"$(VENV)/bin/pip-licenses" --python "$(RUN)" >/dev/null
	"$(VENV)/bin/trainyard" config check
	"$(VENV)/bin/check-jsonschema" --schemafile docs/schemas/buildspec.schema.json buildspec.yml

docs: $(VENV)/development.stamp ## check the documents, and those that are generated
	"$(RUN)" -m pytest tests/unit/test_docs.py
	"$(RUN)" tools/write_config_schema.py --check
	"$(RUN)" tools/write_script_reference.py --check

native: $(VENV)/training.stamp ## build and test the C++ kernels: cmake, a compiler, GoogleTest
	"$(RUN)" scripts/build_native.py

lock: $(VENV)/training.stamp ## resolve the locks anew from their .in files
	UV="$(abspath $(UV))" "$(RUN)" tools/write_locks.py

clean: ## remove environments, runs, prepared data, the local store, kernels
	rm -rf "$(VENV)" "$(UV_HOME)" "$(RUNS)" data/prepared trainyard-store native/build native/build-sanitized \
	  "$(EXPRESSIONS)/node_modules" "$(LLAMA_CPP)/node_modules"

# Whether something is to be done is judged by content, not by time stamps; nothing is said when nothing is.
$(VENV)/training.stamp: FORCE
	@$(INSTALL) training

$(VENV)/development.stamp: FORCE
	@$(INSTALL) development

.PHONY: FORCE
FORCE:
