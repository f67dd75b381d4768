# `make demo` and `make test` are the whole set-up on a fresh machine with Python 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
UNFINISHED := $(VENV)/.unfinished
LOCKS := -r requirements-dev.lock -r requirements-build.lock
BUILD_REQUIRES = $$($(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])')
RELEASE_TOOLS := .release/.installed

# Tests start some thousand processes: without byte code each would compile all of Fairlead that it imports.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install demo test test-h2spec test-kubernetes fuzz lint graph bench bench-routing bench-rivals bench-reuse bench-tracing papers release docs pictures bare-image lab ttca lab-moves lab-calibration lab-learned lab-reuse lab-answers lab-overload lab-cascade lab-judgements lab-models lab-lock lock clean

help: ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/' | expand -t 18

install: $(INSTALLED) ## Make the virtual environment with pinned dependencies and Envoy.

# pip would take a minute and a half of one core for what uv does in seconds. uv reads none of pip's settings: a registry that
# pip was told of is passed on, the system's certificates count, and where that is not enough, pip does it.
# Without byte code each process would compile what it imports, again and again where PYTHONDONTWRITEBYTECODE is set.
# What was interrupted starts over: a package may be there by half.
$(INSTALLED): requirements-dev.lock requirements-build.lock requirements-uv.lock pyproject.toml hatch_build.py $(wildcard protos/*.proto)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Fairlead needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11 ..." >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "Python's venv module is missing; on Debian run: apt-get install python3-venv" >&2; exit 2; }
	@test ! -e $(UNFINISHED) || rm -rf $(VENV)
	@mkdir -p $(VENV) && rm -f $@ && date +%s >$(UNFINISHED)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing pinned dependencies into $(VENV) (the first time takes some half a minute) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-uv.lock
	@registry=$$($(BIN)/pip config list | sed -n "s/.*\.index-url='\(.*\)'/\1/p" | head -1); \
	  UV_NATIVE_TLS=1 $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python $${registry:+--default-index "$$registry"} \
	    --require-hashes $(LOCKS) || \
	  { echo "uv could not; pip, which has settings of its own, takes a minute or two ..." && \
	    $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes $(LOCKS); }
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation --editable .
	@echo "Installed in $$(($$(date +%s) - $$(cat $(UNFINISHED)))) s."
	@rm $(UNFINISHED) && touch $@

$(RELEASE_TOOLS): requirements-release.txt pyproject.toml
	@test -x .release/bin/python || $(PYTHON) -m venv .release
	@.release/bin/pip install --quiet --disable-pip-version-check -r requirements-release.txt $(BUILD_REQUIRES)
	@touch $@

demo: $(INSTALLED) ## Four simulated engines, Envoy and the sidecar; KEEP=1 stays up, ENGINES=host:port,... uses yours.
	@$(BIN)/fairlead demo $(if $(KEEP),--keep) $(if $(ENGINES),--engines $(ENGINES))

# Rooms of tests/ that start Redis, a browser or vLLM. (Envoy is a package of Python's.)
SYSTEM_ROOMS := admin docs lab migration redis stack tools
WORKERS ?= 3 # most tests wait for real parts, so that three keep two cores busy

test: $(INSTALLED) ## Lint, types, import contracts and all tests; ROOM=policies: the tests of that room alone.
ifdef ROOM
	@test -e tests/$(ROOM) || { echo "There is no tests/$(ROOM); ROOM is one of: $$(cd tests && echo */)" >&2; exit 2; }
	@$(if $(filter $(SYSTEM_ROOMS),$(firstword $(subst /, ,$(ROOM)))),.ci/install-system-parts)
	$(BIN)/pytest tests/$(ROOM)
else
	@$(MAKE) --no-print-directory lint
	@.ci/install-system-parts
	$(BIN)/pytest -n $(WORKERS) --no-loadscope-reorder
endif

test-h2spec: $(INSTALLED) ## h2spec's cases for HTTP/2 and HPACK against the edge; builds h2spec where Go is.
	@$(BIN)/python tests/edge/h2spec.py

test-kubernetes: $(INSTALLED) ## Against a real kube-apiserver: discovery, charts; builds it where Go is, ten minutes once.
	@$(BIN)/python -m tests.kubernetes.parts
	$(BIN)/pytest tests/kubernetes

fuzz: $(INSTALLED) ## Attack a running sidecar for an hour: wire, order, bodies, aborts; SECONDS=30 SEED=1 for others.
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),3600) $(if $(SEED),--seed $(SEED))

lint: $(INSTALLED) ## ruff, mypy --strict, import-linter, no ring of packages.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy benchmarks # on its own: there scripts import one another, while a test imports one by its full name
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/package_graph.py >/dev/null

graph: $(INSTALLED) ## Which package imports which, lowest first; ends 1 where they do so in a ring.
	@$(BIN)/python scripts/package_graph.py

bench: $(INSTALLED) ## What the sidecar costs, alongside a processor without any logic; writes benchmarks/results/.
	$(BIN)/fairlead bench

bench-routing: $(INSTALLED) ## The policies on the same sessions, through Envoy to simulated engines; some eight minutes.
	$(BIN)/fairlead bench-routing

bench-rivals: $(INSTALLED) ## Fairlead beside other gateways in the same passes; some six minutes, and ten to install them once.
	$(BIN)/fairlead bench-rivals

bench-reuse: $(INSTALLED) ## What context reuse saves and costs, on real lists of retrieved documents; some two minutes.
	$(BIN)/fairlead bench-reuse $(if $(CONTEXTPILOT),--contextpilot $(CONTEXTPILOT))

bench-tracing: $(INSTALLED) ## A request's path with tracing off, on and unsampled, on and sampled; some ten minutes.
	$(BIN)/fairlead bench-tracing

papers: $(INSTALLED) ## The papers' experiments, repeated in simulated time; writes benchmarks/results/papers/.
	@for each in benchmarks/papers/[a-z]*.py; do echo "== $$each"; $(BIN)/python $$each || exit 1; done

lab: $(INSTALLED) ## Real servers on this CPU with tiny models, Envoy and the sidecar; MODELS="wren sglang:wren", ENGINE=sglang.
	@$(BIN)/python -m lab $(if $(ENGINE),--engine $(ENGINE)) $(MODELS)

ttca: $(INSTALLED) ## Time to correct answer on the lab's engines; MODELS="heron sglang:stork"; writes benchmarks/results/ttca/.
	$(BIN)/python -m lab.ttca $(MODELS) $(if $(OUT),--out $(OUT))

lab-moves: $(INSTALLED) ## A copy of KV between two real servers, timed; writes benchmarks/results/moves/; some minutes.
	$(BIN)/python -m lab.moves

lab-calibration: $(INSTALLED) ## The simulated engine against a real one; writes benchmarks/results/calibration/.
	$(BIN)/python -m lab.calibration

lab-learned: $(INSTALLED) ## What is learned of engines with default flags, against a calibration; some minutes.
	$(BIN)/python -m lab.learned $(MODELS)

lab-reuse: $(INSTALLED) ## Context reuse in front of real vLLM servers; writes benchmarks/results/lab-reuse/; some five minutes.
	$(BIN)/python -m lab.reuse

lab-answers: $(INSTALLED) ## Right answers of real models with and without context reuse; some five minutes.
	$(BIN)/python -m lab.reuse_answers $(MODELS)

lab-overload: $(INSTALLED) ## Chat beside a flood of batch requests on a real vLLM server; writes benchmarks/results/lab-overload/; five minutes.
	$(BIN)/python -m lab.overload

lab-cascade: $(INSTALLED) ## A cascade of two real models against each; writes benchmarks/results/lab-cascade/; some minutes.
	$(BIN)/python -m lab.cascade

lab-judgements: $(INSTALLED) ## Judged answers of three real models to the same questions; writes benchmarks/data/; some minutes.
	$(BIN)/python -m lab.judgements

lab-models: $(INSTALLED) ## Train the lab's tiny models again, in the lab's environment; some half an hour.
	@$(BIN)/python -m lab.train

lab-lock: ## Write the lab's lock files again (needs uv). torch is installed on its own, so what it brings is left out.
	uv pip compile lab/requirements.in --override lab/overrides.txt --python-version 3.11 \
	  --python-platform x86_64-manylinux_2_28 --no-header --no-annotate -q -o lab/requirements.lock
	sed -i -E '/^(torch|triton|nvidia-|cuda-)/d' lab/requirements.lock
	uv pip compile lab/requirements-sglang.in --override lab/overrides-sglang.txt --python-version 3.11 \
	  --python-platform x86_64-manylinux_2_34 --no-header --no-annotate -q -o lab/requirements-sglang.lock
	sed -i -E '/^(torch|triton|(nvidia|cuda)-[a-z0-9-]+)==/d' lab/requirements-sglang.lock

LOCK := .release/bin/uv pip compile
LOCKED := --universal --python-version 3.11 --generate-hashes -q

lock: $(RELEASE_TOOLS) ## Write the lock files again from pyproject.toml.
	$(LOCK) pyproject.toml --extra serve $(LOCKED) -o requirements.lock
	$(LOCK) pyproject.toml --all-extras --group dev $(LOCKED) -o requirements-dev.lock
	$(LOCK) requirements-docs.txt $(LOCKED) -o requirements-docs.lock
	printf '%s\n' $(BUILD_REQUIRES) | $(LOCK) - --constraint requirements-dev.lock $(LOCKED) -o requirements-build.lock
	grep '^uv==' requirements-release.txt | $(LOCK) - $(LOCKED) -o requirements-uv.lock

release: $(RELEASE_TOOLS) ## Build and check the sdist and the wheel into dist/, twice, byte by byte; publishes nothing.
	@.release/bin/python scripts/release.py

pictures: $(INSTALLED) ## The pictures of docs/pictures/: dashboards and the status page, of a pool under load; ten minutes.
	@.ci/install-system-parts
	$(BIN)/python -m scripts.pictures

bare-image: $(INSTALLED) ## The Dockerfile's steps in a bare root, and its image run there; needs root and debootstrap; long on a busy machine.
	$(BIN)/python -m scripts.bare_image

docs: ## The documentation as a site in .docs/site, built strictly: every link and heading that a page names is there.
	@test -x .docs/bin/mkdocs || { $(PYTHON) -m venv .docs && .docs/bin/pip install --quiet \
	  --disable-pip-version-check --require-hashes -r requirements-docs.lock; }
	@.docs/bin/python scripts/site.py

clean: ## Remove the virtual environment and caches.
	rm -rf $(VENV) .release .docs dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
