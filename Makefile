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
RESULTS ?= results/$(shell hostname)
STUDY = $(VENV)/wirebench study

.DEFAULT_GOAL := help
.PHONY: help setup run test test-all test-weekly lint format clean tables site bench-overhead bench-failures bench-cifar bench-synthetic \
	bench-collectives bench-flexreduce bench-compressors bench-speed bench-gssgd bench-accuracy bench-mgwfbp \
	bench-prediction bench-schedules bench-break-even bench-iwp bench-ranking

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

# Lint runs at the same time as most tests, since mypy keeps one core busy for a minute where it has no cache; its output
# follows theirs. Those tests run in four processes, a thread each, the tests of a file in one: on two cores, too, since
# many wait for jobs that they launch. Then, one by one, come the tests that look at the clock, so that a good run ends
# with pytest's summary. A failure of one part is the failure of all. Bytecode is kept even where the environment says
# otherwise: else each process compiles all tests again.
define pytest
	@failed=; said=$$(mktemp); \
	$(MAKE) --no-print-directory lint >"$$said" 2>&1 & lint=$$!; \
	trap 'kill $$lint 2>/dev/null; rm -f "$$said"' EXIT; \
	export PYTHONDONTWRITEBYTECODE=; \
	OMP_NUM_THREADS=1 $(VENV)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder -m "not clock$(1)" $(2) \
		|| failed="$$failed tests"; \
	wait $$lint || failed="$$failed lint"; cat "$$said"; \
	$(VENV)/python -m pytest -m "clock$(1)" $(2) $(CLOCK) || failed="$$failed clock"; \
	test -z "$$failed" || { echo "make $@: failed:$$failed" >&2; exit 1; }
endef

test: setup ## lint, and all tests that protect a change (about 5 min)
	$(call pytest, and not slow)

test-all: setup ## lint, and all tests but the weekly ones, also those marked slow, with more random examples (about 25 min)
	$(call pytest, and not weekly,--hypothesis-profile=full)

test-weekly: setup ## lint, and every test (about 50 min)
	$(call pytest,,--hypothesis-profile=full)

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

bench-overhead: setup ## our train step and synchronise compared with DDP and with Horovod's optimizer (about 35 min)
	@mkdir -p $(RESULTS)/overhead
	@for engine in torch horovod; do for model in resnet20 vgg16; do \
		$(RUN_ENV) $(VENV)/wirebench bench overhead --engine $$engine --model $$model \
			--json $(RESULTS)/overhead/$$engine-$$model.json 2>&1 | $(PLAIN); done; done
	@$(RUN_ENV) $(VENV)/wirebench bench overhead --engine torch --model resnet20 --ours synchronise --turns 30 \
		--json $(RESULTS)/overhead/torch-resnet20-synchronise.json

bench-failures: setup ## faults in jobs, hosts that are lost, checkpoints: what each costs; CIFAR=FOLDER and root for a part (about 2.5 h)
	@failed=; \
	$(STUDY) failures run $(if $(wildcard $(CIFAR)),--data "$(CIFAR)") || failed=yes; \
	$(STUDY) failures report && test -z "$$failed"

bench-cifar: setup ## CIFAR-10, ResNet-20, 2 workers, 6 epochs: dense and top-1 %; CIFAR=FOLDER (about 15 min)
	@for name in dense topk; do $(RUN_ENV) $(call launch,2) train.py \
		configs/cifar10_resnet20_$$name.toml data.root="$(CIFAR)" output.dir=$(RESULTS)/cifar10_resnet20_$$name \
		2>&1 | $(PLAIN); done

bench-synthetic: setup ## a few steps of every model on random images, 2 workers (about 15 min)
	@for config in configs/synthetic/*.toml; do $(RUN_ENV) $(call launch,2) train.py \
		$$config data.batch_size=4 train.max_steps=6 train.warmup_steps=2 train.eval_every=0 \
		output.dir=$(RESULTS)/$$(basename $$config .toml) 2>&1 | $(PLAIN); done

# Measured twice: the speeds are fitted to the first measurement, and predict the second.
COLLECTIVES = $(RESULTS)/collectives
CLUSTER = $(VENV)/wirebench cluster run --layout 2+3 --link 200mbit -- \
	wirebench bench collectives --sizes 4 1k 16k 60kf 1m 4m 4000kf --seconds 10

bench-collectives: setup ## all-reduce algorithms on 2+3 workers, 200 Mbit/s links; the fit and its prediction (about 10 min)
	@mkdir -p $(COLLECTIVES)
	@$(CLUSTER) --json $(COLLECTIVES)/2+3-fitted.jsonl
	@$(VENV)/wirebench fit $(COLLECTIVES)/2+3-fitted.jsonl --out $(COLLECTIVES)/2+3.toml
	@$(CLUSTER) --topology $(COLLECTIVES)/2+3.toml --json $(COLLECTIVES)/2+3-predicted.jsonl
	@$(VENV)/wirebench fit $(COLLECTIVES)/2+3-predicted.jsonl --judge $(COLLECTIVES)/2+3.toml
	@$(VENV)/wirebench bench plot-collectives $(COLLECTIVES)/2+3-predicted.jsonl --link 200mbit --out $(COLLECTIVES)

# A run that failed leaves the others to be reported, and is the failure of the whole.
bench-flexreduce: setup ## FlexReduce's table and figures on nine emulated clusters, 100 Mbit/s links (about 25 min)
	@failed=; \
	$(STUDY) flexreduce run --again || failed=yes; \
	$(STUDY) flexreduce run --again --end-to-end --link 400mbit || failed=yes; \
	$(STUDY) flexreduce report && test -z "$$failed"

bench-compressors: setup ## every compressor's own time and memory, on four models (about 30 min)
	@$(VENV)/wirebench bench compressors --json $(RESULTS)/compressors/cells.jsonl \
		--figures $(RESULTS)/compressors

bench-speed: setup ## every compressor, and local steps, on emulated hosts: time per step, bytes (about 4 h)
	@failed=; \
	$(STUDY) speed run || failed=yes; \
	$(STUDY) speed report && test -z "$$failed"

bench-gssgd: setup ## the gs-SGD paper's Table II, 4 emulated hosts, 1 Gbit/s: five turns of eight variants (about 25 min)
	@failed=; \
	$(STUDY) gs_sgd run || failed=yes; \
	$(STUDY) gs_sgd report && test -z "$$failed"

IMAGES ?=

bench-iwp: setup ## the IWP paper's ratios, waiting times and network I/O; CIFAR=FOLDER, IMAGES=FOLDER (about 2 h)
	@failed=; \
	$(STUDY) iwp run --data "$(CIFAR)" $(if $(IMAGES),--images "$(IMAGES)") || failed=yes; \
	$(STUDY) iwp report && test -z "$$failed"

bench-accuracy: setup ## trainings over seeds: every compressor on CIFAR-10, the methods of 2022 to 2026; CIFAR=FOLDER (about 36 h)
	@$(STUDY) accuracy run $(if $(wildcard $(CIFAR)),--data "$(CIFAR)")

bench-mgwfbp: setup ## the MG-WFBP paper's claims, simulated: table and figures (a few seconds)
	@$(STUDY) mg_wfbp report

bench-schedules: setup ## every schedule on emulated clusters, compared with the MG-WFBP paper's speed-ups (about 140 min)
	@failed=; \
	$(STUDY) mg_wfbp run --again || failed=yes; \
	$(STUDY) mg_wfbp report results/schedules/*/ && test -z "$$failed"

BREAK_EVEN = results/break_even
# How long compressors work is measured anew: machines of one name differ by a fifth in how fast they copy. The runs that
# show what messages cost its processors are those of bench-prediction.
RATES = results/prediction/rates.jsonl

bench-break-even: setup ## compressors on both sides of the break-evens that the planner predicts, 2 emulated hosts (about 30 min)
	@mkdir -p $(BREAK_EVEN)
	@$(VENV)/wirebench bench compressors --density 0.01 --sizes 4k 270k 14.7m --no-rivals --json $(RATES)
	@$(VENV)/wirebench cluster run --hosts 2 --link 1gbit -- wirebench bench collectives \
		--collectives ring halving_doubling native --sizes 4 1k 16k 256k 1m 4m 16m 59m --seconds 10 \
		--json $(BREAK_EVEN)/2x1gbit.jsonl
	@$(VENV)/wirebench fit $(BREAK_EVEN)/2x1gbit.jsonl --runs results/prediction --out $(BREAK_EVEN)/2x1gbit.toml
	@failed=; \
	$(STUDY) planner run --only break_even --again --topology $(BREAK_EVEN)/2x1gbit.toml || failed=yes; \
	$(STUDY) planner report $(BREAK_EVEN)/*/ && test -z "$$failed"

bench-ranking: setup ## the planner's ten best compositions on six emulated clusters, five turns of each (about 90 min)
	@failed=; \
	$(STUDY) planner run --only ranking --again || failed=yes; \
	$(STUDY) planner report results/ranking/*/ && test -z "$$failed"

bench-prediction: setup ## forty compositions on emulated clusters, each compared with its prediction (about 15 min)
	@rm -f $(RATES).new
	@$(VENV)/wirebench bench compressors --density 0.01 --sizes 4k 270k 14.7m --no-rivals --json $(RATES).new || \
	test -s $(RATES).new
	@test ! -e $(RATES).new || mv $(RATES).new $(RATES)
	@failed=; \
	$(STUDY) planner run --only prediction --again || failed=yes; \
	$(STUDY) planner report --fit results/prediction results/prediction-100 && test -z "$$failed"

clean: ## remove caches and build output; keeps .venv and results
	@rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist *.egg-info
	@find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
