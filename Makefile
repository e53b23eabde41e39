# The verbs of this repository. Each makes what it needs on a machine that has only Python 3.11 or newer and the
# package registries, stops what it started, and ends with one line that sums up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
INSTALL := $(UV) pip install --quiet --python $(BIN)/python --require-hashes

SOURCES := shared services tests bench
SEEDS ?= 20
POINTS ?= all

.PHONY: help demo up test check format generate lock bench sim clean

help: ## What there is
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

# --- the environment --------------------------------------------------------------------------------------------------

$(VENV)/.tools: requirements/bootstrap.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Slipway needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3"; exit 2; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
	@touch $@

$(VENV)/.runtime: $(VENV)/.tools requirements/runtime.txt pyproject.toml
	@echo "installing what Slipway runs on"
	@$(INSTALL) -r requirements/runtime.txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements/dev.txt
	@echo "installing what tests and checks need"
	@$(INSTALL) -r requirements/dev.txt
	@touch $@

# --- the verbs --------------------------------------------------------------------------------------------------------

demo: $(VENV)/.runtime ## Start everything, do the main job once, visibly, and stop everything
	@$(BIN)/slipway demo

up: $(VENV)/.runtime ## Start everything and keep it up until Ctrl-C
	@$(BIN)/slipway up

test: $(VENV)/.dev ## The whole test suite
	@$(BIN)/python -m pytest
	@echo "make test: passed"

check: $(VENV)/.dev ## Format, lint, import contracts, types
	@$(BIN)/ruff format --check --quiet $(SOURCES)
	@$(BIN)/ruff check --quiet $(SOURCES)
	@PYTHONPATH=. $(BIN)/lint-imports --no-cache > $(VENV)/lint-imports.log 2>&1 || { cat $(VENV)/lint-imports.log; exit 1; }
	@$(BIN)/pyright --pythonpath $(BIN)/python $(SOURCES)
	@echo "make check: format, lint, import contracts and types are clean"

format: $(VENV)/.dev ## Format and mend what can be mended
	@$(BIN)/ruff check --fix --quiet $(SOURCES)
	@$(BIN)/ruff format --quiet $(SOURCES)
	@echo "make format: done"

generate: $(VENV)/.dev ## CRDs, reference docs and diagrams from the code
	@$(BIN)/python -m slipway.crd.schema helm/crds
	@$(BIN)/python -m tests.support.generate docs
	@echo "make generate: helm/crds and docs/reference are up to date"

sim: $(VENV)/.dev ## Deterministic simulation: crash points and seeds (SEEDS=, POINTS=)
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --points $(POINTS)

bench: $(VENV)/.dev ## Measure; tables here, JSON in bench/results
	@$(BIN)/python -m bench

lock: $(VENV)/.tools ## Lock the dependencies again, with hashes
	@$(UV) pip compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-header pyproject.toml --group build -o requirements/runtime.txt
	@$(UV) pip compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-header pyproject.toml --group dev -o requirements/dev.txt
	@echo "make lock: requirements/*.txt are new; read the difference before you commit it"

clean: ## Remove what the other verbs made
	@rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist
	@echo "make clean: done"
