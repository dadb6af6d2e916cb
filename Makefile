# Every target does the set-up that it needs; after the first time that takes well under a second.
#   make run NP=2 CONFIG=configs/other.toml ARGS="train.max_steps=5"

VENV := .venv/bin
NP ?= 4
CONFIG ?= configs/smoke.toml
ARGS ?=

# One host, so: its address needs no name look-up (a name that is not found would mean ssh), traffic stays on the
# loopback interface, nothing is kept in the home folder, and ranks that share cores get time to start.
HOROVODRUN := $(VENV)/horovodrun -np $(NP) -H 127.0.0.1:$(NP) --gloo --network-interface lo --disable-cache \
	--gloo-timeout-seconds 120

# Children of horovodrun find the environment's programs first. One thread a rank, as torchrun does: ranks share the
# cores. The last one says the same to torch.distributed as --network-interface to Horovod.
RUN_ENV := PATH="$(CURDIR)/$(VENV):$$PATH" OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} \
	GLOO_SOCKET_IFNAME=$${GLOO_SOCKET_IFNAME:-lo}

.DEFAULT_GOAL := help
.PHONY: help setup run test lint format clean

help: ## show this list
	@echo 'Wirebench: what data-parallel training puts on the wire'
	@echo
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'
	@echo
	@echo 'make run takes NP (processes, $(NP)), CONFIG ($(CONFIG)) and ARGS (section.key=value ...).'

setup: ## make .venv with pinned packages and Horovod
	@bash scripts/setup.sh

run: setup ## train CONFIG on NP Horovod processes, then show the record
	@test -x $(VENV)/horovodrun || \
		{ echo 'make run: Horovod is missing; run make setup without WIREBENCH_NO_HOROVOD' >&2; exit 2; }
	$(RUN_ENV) $(HOROVODRUN) $(VENV)/python train.py $(CONFIG) $(ARGS)
	@$(VENV)/python scripts/show.py --latest

# Tests come last, so that a good run ends with pytest's summary; a failure of either is the failure of both.
test: setup ## lint, then all tests
	@failed=; \
	$(MAKE) --no-print-directory lint || failed="$$failed lint"; \
	$(VENV)/python -m pytest || failed="$$failed tests"; \
	test -z "$$failed" || { echo "make test: failed:$$failed" >&2; exit 1; }

lint: setup ## ruff check, ruff format --check, mypy
	@failed=; \
	$(VENV)/ruff check . || failed="$$failed ruff-check"; \
	$(VENV)/ruff format --check . || failed="$$failed ruff-format"; \
	$(VENV)/mypy || failed="$$failed mypy"; \
	test -z "$$failed" || { echo "make lint: failed:$$failed" >&2; exit 1; }

format: setup ## put imports and layout right
	@$(VENV)/ruff check --fix . ; $(VENV)/ruff format .

clean: ## remove caches and build output; keeps .venv and results
	@rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist *.egg-info
	@find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
