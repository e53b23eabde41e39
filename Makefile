# The verbs of this repository. Each makes what it needs on a machine that has only Python 3.11 or newer and the
# package registries, stops what it started, and ends with one line that sums up.

PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14 python; do \
  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; exit; }; done; echo python3)
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
INSTALL := $(UV) pip install --quiet --python $(BIN)/python --require-hashes
LOCK := $(UV) pip compile --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header
# The index says there that a version which we name was withdrawn since.
NOT_YANKED := > /dev/null 2> $(VENV)/lock.log || { cat $(VENV)/lock.log; exit 1; }; ! grep -i yanked $(VENV)/lock.log
# Bytecode of what runs, also where the environment says not to write it as one goes: without it each process compiles
# its 600 modules at every start, which doubles the time to start and costs 15 MiB of memory each.
PROGRAMS := api.main scheduler.main podworker.main watcher.main local.stack local.apiserver.__main__ \
  local.node.__main__ local.node.shim cli.verbs.local cli.verbs.run
SITE := $(VENV)/lib/python*/site-packages
LATER := opentelemetry.sdk.trace.sampling uvicorn.protocols.http.httptools_impl uvicorn.lifespan.off httpx2 uvloop
COMPILE := $(BIN)/python -m compileall -q shared local services $(SITE)/kubernetes/aio/config $(SITE)/aiohttp_retry && \
  $(BIN)/python -m compileall -q -l $(SITE)/kubernetes/aio/client $(SITE)/kubernetes/aio/utils && \
  PYTHONDONTWRITEBYTECODE= $(BIN)/python -c \
  "from importlib import import_module as load; [load(m) for m in '$(PROGRAMS:%=slipway.%) $(LATER)'.split()]"

SOURCES := shared local services tests tools bench image
POINTS ?= gate
SAMPLE ?= 1
MINUTES ?= 10
SEED ?=
OPERATIONS ?= 100000
MODEL ?= all

# As many workers as the machine has cores; a file of tests stays in one of them, as what its tests share does. Tests of
# whole processes wait for most of their time: among them there is room for one worker more.
WORKERS ?= $(shell getconf _NPROCESSORS_ONLN)
PYTEST = $(BIN)/python -m pytest --numprocesses=$(1) --dist=loadfile $(if $(SEED),--randomly-seed=$(SEED))

.PHONY: help demo up test test-all pictures docs-pictures docs-demo conformance check format generate lock bench budget sim chaos models fuzz node wheel release clean

help: ## What there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

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
	@$(COMPILE)
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

test: $(VENV)/.dev ## The tests that a change needs, in minutes; its closing line is pytest's (ARGS=, SEED=)
	@$(call PYTEST,$$(($(WORKERS) + 1))) $(ARGS)

test-all: $(VENV)/.dev ## Every test, every matrix whole, real servers, whole processes, browsers (ARGS=, SEED=)
	@$(call PYTEST,$$(($(WORKERS) + 3))) tests $(ARGS)

node: $(VENV)/.dev ## A cluster with real nodes (kubelet, containerd, runc) until Ctrl-C; ARGS=--test runs its tests
	@$(BIN)/python -m tests.node $(ARGS)

pictures: $(VENV)/.dev ## The page as a person sees it: pictures of every page, both themes, wide and phone (FOLDER=)
	@test -n "$(FOLDER)" || { echo "name a folder for the pictures: make pictures FOLDER=/tmp/pictures"; exit 2; }
	@$(BIN)/python -m tests.browser.gallery "$(FOLDER)"

docs-pictures: $(VENV)/.dev ## The pictures of the page that the docs show, taken again
	@$(BIN)/python -m tests.browser.gallery --docs docs/pictures

docs-demo: $(VENV)/.dev ## The recorded session that the docs show, run again
	@$(BIN)/python -m tools.demo_session docs/demo.md

conformance: $(VENV)/.dev ## Contracts and the whole system on a real kube-apiserver, etcd and Redis (or KUBECONFIG=)
	@$(BIN)/python -m tests.conformance $(ARGS)

check: $(VENV)/.dev ## Format, lint, import contracts, types, the rules of the locks
	@$(BIN)/ruff format --check --quiet $(SOURCES)
	@$(BIN)/ruff check --quiet $(SOURCES)
	@$(BIN)/lint-imports --no-cache > $(VENV)/lint-imports.log 2>&1 || { cat $(VENV)/lint-imports.log; exit 1; }
	@$(BIN)/pyright --pythonpath $(BIN)/python $(SOURCES)
	@$(BIN)/python -m tools.page_types
	@$(BIN)/python -m tools.release.lockfile
	@echo "make check: format, lint, import contracts and types are clean"

format: $(VENV)/.dev ## Format and mend what can be mended
	@$(BIN)/ruff check --fix --quiet $(SOURCES)
	@$(BIN)/ruff format --quiet $(SOURCES)
	@echo "make format: done"

generate: $(VENV)/.dev ## CRDs, reference docs and diagrams from the code
	@$(BIN)/python -m slipway.crd.schema helm/files/crds
	@$(BIN)/python -m tools.release.version
	@$(BIN)/python -m tools.chart_schema helm/values.schema.json
	@$(BIN)/python -m tools.dashboards helm/files/dashboards
	@$(BIN)/python -m tools.reference.redis_accounts helm/files/redis/accounts
	@$(BIN)/python -m tools.reference.pod_rules helm/files/policies
	@$(BIN)/python -m tools.generate docs
	@$(BIN)/python -m bench.page
	@$(BIN)/python -m bench.quality_page
	@echo "make generate: helm, docs/reference, docs/performance.md and docs/scheduling-quality.md are up to date"

sim: $(VENV)/.dev ## Deterministic simulation: the gate, all points or a sample of so many (POINTS=gate|all|6000, SAMPLE=)
	@$(BIN)/python -m tests.simulation --points $(POINTS) --sample $(SAMPLE) --keep

models: $(VENV)/.dev ## Random operations on the models and on real servers side by side (OPERATIONS=, MODEL=)
	@$(BIN)/python -m tests.models $(MODEL) --operations $(OPERATIONS) $(ARGS)

chaos: $(VENV)/.dev ## Faults of every kind on real processes, and an audit (MINUTES=, SEED=)
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

fuzz: $(VENV)/.dev ## Whatever a client or a stream may send: the REST surface, every decoder (ARGS=)
	@$(BIN)/python -m tests.fuzz $(ARGS)

bench: $(VENV)/.dev ## Measure; tables here, JSON in bench/results
	@$(BIN)/python -m bench

budget: $(VENV)/.dev ## What a launch and a tick cost, counted and held to bench/budget/budget.json (ARGS=--write)
	@$(BIN)/python -m bench.budget $(ARGS)

wheel: $(VENV)/.dev ## The file that users install the command and the SDK from, in dist/
	@rm -rf dist
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2> /dev/null || echo 0) $(BIN)/python -m hatchling build --target wheel --directory dist

release: $(VENV)/.dev ## Everything that users install from, in dist/: wheel, sdist, chart, image, SBOM, sums (ARGS=)
	@$(BIN)/python -m tools.release $(ARGS)

lock: $(VENV)/.tools ## Lock the dependencies again, with hashes
	@$(LOCK) pyproject.toml --extra local --extra otlp-grpc --group build -o requirements/runtime.txt $(NOT_YANKED)
	@$(LOCK) pyproject.toml --extra local --extra otlp-grpc --group dev -o requirements/dev.txt $(NOT_YANKED)
	@echo "make lock: requirements/*.txt are new; read the difference before you commit it"

clean: ## Remove what the other verbs made
	@rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist
	@echo "make clean: done"
