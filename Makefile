# Every target does the set-up that it needs; after the first time that takes well under a second.
#   make run NP=2 CONFIG=configs/other.toml ARGS="train.max_steps=5"
#   make run ENGINE=torch         # torchrun starts the ranks; a set-up for this needs no compiler
#   make setup HOROVOD=0          # an environment without Horovod; HOROVOD=1 builds it again

VENV := .venv/bin
ENGINE ?= horovod
ifeq ($(filter horovod torch,$(ENGINE)),)
$(error ENGINE is $(ENGINE); it can be horovod or torch)
endif
ifeq ($(ENGINE),torch)
export HOROVOD ?= 0
endif
NP ?= 4
ifneq ($(shell printf '%s\n' '$(NP)' | grep -cxE '0*[1-9][0-9]*'),1)
$(error NP is $(NP); it needs a whole number of processes, at least 1)
endif
CONFIG ?= configs/smoke.toml
ARGS ?=

# One host, so: its address needs no name look-up (a name that is not found would mean ssh), traffic stays on the
# loopback interface, nothing is kept in the home folder, and ranks that share cores get time to start.
horovodrun = $(VENV)/horovodrun -np $(1) -H 127.0.0.1:$(1) --gloo --network-interface lo --disable-cache \
	--gloo-timeout-seconds 120
torchrun = $(VENV)/torchrun --standalone --local-addr 127.0.0.1 --nproc-per-node $(1)

# $(call launch,NP): the words before a script's name, chosen when a recipe begins, which is after the set-up.
launch = $(if $(and $(filter horovod,$(ENGINE)),$(shell test -x $(VENV)/horovodrun && echo yes)),$\
	$(call horovodrun,$(1)) $(VENV)/python,$(call torchrun,$(1)))

# Children of horovodrun find the environment's programs first. One thread a rank, as torchrun does: ranks share the
# cores. The last one says the same to torch.distributed as --network-interface to Horovod.
RUN_ENV := PATH="$(CURDIR)/$(VENV):$$PATH" OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} \
	GLOO_SOCKET_IFNAME=$${GLOO_SOCKET_IFNAME:-lo}

# horovodrun puts "[rank]<stdout>:" before every line, and ends with a traceback of its own where a rank failed, or where
# it was built without Gloo: of that only the last line is kept.
PLAIN := sed -u -E -e '/^Traceback \(most recent call last\):$$/{N;/bin\/horovodrun", line/{:more;N;/\n(Runtime|Value)Error: [^\n]*$$/!b more;s/.*\n(Runtime|Value)Error: //}}' \
	-e 's/^\[[0-9]*\]<std[a-z]*>://'

# A pipe fails where its first command does.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

CIFAR ?= data/cifar10
IMAGES ?=
STUDY = $(VENV)/wirebench study

.DEFAULT_GOAL := help
.PHONY: help setup run test test-all test-weekly lint format clean tables site

help: ## show this list
	@echo 'Wirebench: what data-parallel training puts on the wire'
	@echo
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-24s %s\n", $$1, $$2 }'
	@echo
	@echo 'make run takes NP (processes, $(NP)), CONFIG ($(CONFIG)), ENGINE ($(ENGINE)) and ARGS (section.key=value ...).'

setup: ## make .venv with pinned packages and Horovod; HOROVOD=0: without it
	@bash scripts/setup.sh

run: setup ## train CONFIG on NP processes of horovodrun, then show the record; ENGINE=torch: of torchrun
	@test $(ENGINE) = torch -o -x $(VENV)/horovodrun || \
		echo 'make run: Horovod is not built here, so torchrun starts the ranks; make setup HOROVOD=1 builds it' >&2
	@$(RUN_ENV) $(call launch,$(NP)) train.py "$(CONFIG)" $(ARGS) 2>&1 | $(PLAIN)

# Only these files are collected for the tests that look at the clock: looking through all takes longer than most do.
CLOCK = $(shell grep -rl --include='test_*.py' 'mark\.clock' tests)

# Lint runs at the same time as most tests, since mypy keeps one core busy for a minute where it has no cache; what it
# says comes among their dots, and once more at the end if it has failed. Those tests run in four processes, a thread
# each, the tests of a file in one: on two cores, too, since many wait for jobs that they launch. Then, with a third
# argument, come the tests that look at the clock, one by one. A failure of one part is the failure of all. Bytecode is
# kept even where the environment says otherwise: else each process compiles all tests again.
define pytest
	@failed=; said=$$(mktemp); \
	$(MAKE) --no-print-directory lint > >(tee "$$said") 2>&1 & lint=$$!; \
	trap 'kill $$lint 2>/dev/null; rm -f "$$said"' EXIT; \
	export PYTHONDONTWRITEBYTECODE=; \
	OMP_NUM_THREADS=1 $(VENV)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder -m "not clock$(1)" $(2) \
		|| failed="$$failed tests"; \
	wait $$lint || { failed="$$failed lint"; cat "$$said"; }; \
	$(if $(3),$(VENV)/python -m pytest -m "clock$(1)" $(2) $(CLOCK) || failed="$$failed clock";) \
	test -z "$$failed" || { echo "make $@: failed:$$failed" >&2; exit 1; }
endef

test: setup ## lint, and all tests that protect a change (about 4 min)
	$(call pytest, and not slow)

test-all: setup ## lint, and all tests but the weekly ones, also those marked slow, with more random examples (about 25 min)
	$(call pytest, and not weekly,--hypothesis-profile=full,clock)

test-weekly: setup ## lint, and every test (about 55 min)
	$(call pytest,,--hypothesis-profile=full,clock)

lint: setup ## ruff check, ruff format --check, mypy
	@failed=; \
	$(VENV)/ruff check . || failed="$$failed ruff-check"; \
	$(VENV)/ruff format --check . || failed="$$failed ruff-format"; \
	$(VENV)/mypy || failed="$$failed mypy"; \
	test -z "$$failed" || { echo "make lint: failed:$$failed" >&2; exit 1; }

format: setup ## sort imports, format the code
	@$(VENV)/ruff check --fix . ; $(VENV)/ruff format .

# Inputs that a study needs, where they are.
INPUTS = $(if $(wildcard $(CIFAR)),--data "$(CIFAR)") $(if $(IMAGES),--images "$(IMAGES)")
TABLES = $(if $(QUICK),build/tables,results)

# What is there already is not made again, so that an interrupted one goes on. A run that failed leaves the others to be
# reported, and is the failure of the whole.
tables: setup ## all studies: runs that are not there yet, every table; QUICK=1: a short version, into build/tables (about 35 min)
	@failed=; export WIREBENCH_RESULTS=$(TABLES); \
	$(STUDY) run $(if $(QUICK),--quick) $(INPUTS) || { code=$$?; test $$code -lt 128 || exit $$code; failed=yes; }; \
	$(STUDY) report $(if $(QUICK),,--docs .) && test -z "$$failed"

# It opens without a server and without a network; papers/site/hooks.py finds its pages.
site: setup ## docs, claims, tables and charts as a site, into build/site (about 1 min)
	@NO_MKDOCS_2_WARNING=1 $(VENV)/python -m mkdocs build --strict --quiet
	@echo 'make site: open build/site/index.html'

clean: ## remove caches and build output; keeps .venv and results
	@rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist *.egg-info
	@find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
