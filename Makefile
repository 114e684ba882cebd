# gpuledger: `make run` shows it, `make test` proves it; `make help` lists the rest.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SUDO   := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# Without a GPU the simulator is asked for by name: `--source auto` never makes numbers up.
SOURCE ?= $(if $(wildcard /dev/nvidiactl /dev/nvidia0 /dev/dxg),auto,simulator)
FLAGS  ?=
# One more than there are cores: the tests that take long wait for other programs.
JOBS   ?= $(shell expr $$(nproc) + 1)
# Tests start the program hundreds of times: compiled anew each time, a start takes half as long again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help run test unit integration cluster e2e lint format docs site dashboards chart manifests screenshots bench prove \
        fuzz mutants build image lock sbom audit clean debian debian-cluster

help:                    ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/:/' | column -t -s: 2>/dev/null \
	  || grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST)

run: $(VENV)/.run        ## serve this machine's GPUs (or, without any, a simulated node) on port 9400
	@echo "source: $(SOURCE)$(if $(findstring listen-address,$(FLAGS)),,    page: http://localhost:9400/    metrics: http://localhost:9400/metrics)"
	$(BIN)/gpuledger serve --source $(SOURCE) $(FLAGS)

# The long tests first: at the end the short ones keep all cores busy.
test: $(VENV)/.dev debian  ## every test but e2e, with the real Prometheus and the test NVML library
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup tests/integration tests/unit

unit: $(VENV)/.dev       ## the fast tests alone
	$(BIN)/python -m pytest -n $(JOBS) tests/unit

integration: $(VENV)/.dev debian  ## the tests that start real programs
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup tests/integration

cluster: debian-cluster  ## build, once, what the Kubernetes node of `e2e` runs (some minutes)
	@$(SUDO) tests/cluster/build.sh >/dev/null

e2e: $(VENV)/.dev debian cluster  ## the tests with a real Kubernetes node (root)
	$(SUDO) $(BIN)/python -B -m pytest -n 2 --dist loadgroup -p no:cacheprovider tests/cluster

lint: $(VENV)/.dev       ## ruff, mypy strict, import rules
	$(BIN)/ruff check src tests benchmarks deploy docs
	$(BIN)/ruff format --check src tests benchmarks deploy docs
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev     ## rewrite the code as ruff wants it
	$(BIN)/ruff check --fix src tests benchmarks deploy docs
	$(BIN)/ruff format src tests benchmarks deploy docs

docs: $(VENV)/.dev       ## write docs/metrics.md anew from the catalogue
	$(BIN)/gpuledger metrics --format markdown > docs/metrics.md

site: $(VENV)/.dev       ## build the documentation's site: build/site/index.html
	$(BIN)/python -m sphinx -q -W --keep-going -E -a -b html docs build/site

dashboards: $(BIN)/python  ## write deploy/grafana/dashboards anew from deploy/grafana/make
	$(BIN)/python -B deploy/grafana/make

chart: $(VENV)/.run      ## write what deploy/helm/gpuledger has from elsewhere: schema, README's values, dashboards, rules
	$(BIN)/python -B deploy/helm/make

manifests: $(VENV)/.dev chart  ## write kubernetes/ and deploy/rbac.yaml anew from the chart
	$(BIN)/python -B deploy/helm/make/manifests.py

screenshots: $(VENV)/.dev debian  ## take docs/pictures/ anew, of a simulated node (some minutes)
	PYTHONPATH=src:tests $(BIN)/python tests/screenshots.py docs/pictures
	PYTHONPATH=src:tests $(BIN)/python tests/screenshot_top.py docs/pictures/top.png

bench: $(VENV)/.dev debian  ## measure a node and write the table in docs/performance.md
	$(BIN)/python benchmarks/node.py --write docs/performance.md
	$(BIN)/python benchmarks/scrapers.py --write docs/performance.md
	$(BIN)/python benchmarks/watchers.py --write docs/performance.md
	$(BIN)/python benchmarks/ledger.py --write docs/performance.md
	$(BIN)/python benchmarks/identity.py --write docs/performance.md
	$(BIN)/python benchmarks/report.py --write docs/performance.md
	$(BIN)/python benchmarks/remote_write.py --write docs/remote-write.md
	$(BIN)/python benchmarks/agent.py --write docs/agent.md
	$(BIN)/python benchmarks/budgets.py --write docs/performance.md

prove: bench             ## the long proofs (some hours): bench, an hour of churn, instructions, fuzz; writes their tables
	$(BIN)/python benchmarks/soak.py --write docs/reliability.md
	$(BIN)/python benchmarks/instructions.py --repeat 3 --write docs/performance.md
	$(BIN)/python benchmarks/budgets.py --write docs/performance.md
	$(MAKE) fuzz

EXAMPLES ?= 5000
fuzz: $(VENV)/.dev       ## the fuzz tests with EXAMPLES=5000 a law
	GPULEDGER_FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -n $(JOBS) tests/unit/fuzz

# All of them take a day or two: MUTANTS='gpuledger.ledger.energy.*' takes some.
MUTANTS ?=
mutants: $(VENV)/.dev    ## break ledger, dialects and workloads in every small way, and see whether a test notices
	$(BIN)/pip install -q --disable-pip-version-check 'mutmut>=3.8,<4'
	$(BIN)/mutmut run $(MUTANTS)

# One file with everything but Python itself: `OUT` is where it and the link of the old name go.
OUT ?= .
build: $(VENV)/.dev      ## one executable file, ./gpuledger, for any machine with this Python
	$(BIN)/python -m pex -r requirements.lock --no-build --sources-directory src --entry-point gpuledger.cli.main:main \
	  --venv --sh-boot --interpreter-constraint "CPython==$$($(BIN)/python -c 'import sys; print("%d.%d.*" % sys.version_info[:2])')" \
	  --output-file $(OUT)/gpuledger
	ln -sf gpuledger $(OUT)/my-gpu-exporter

VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/gpuledger/__init__.py)
IMAGE  ?= gpuledger
image:                   ## both images, by docker (or DOCKER=podman)
	$(or $(DOCKER),docker) build --build-arg REVISION=$$(git rev-parse HEAD) -t $(IMAGE):$(VERSION) .
	$(or $(DOCKER),docker) build --build-arg REVISION=$$(git rev-parse HEAD) -t $(IMAGE):$(VERSION)-smi --target smi .

PIP_COMPILE = $(BIN)/pip-compile -q --generate-hashes --strip-extras --no-header --no-emit-index-url --no-emit-find-links
lock: $(VENV)/.dev       ## pin what the image and the archive hold to the newest, with hashes
	$(BIN)/pip install -q --disable-pip-version-check pip-tools
	$(PIP_COMPILE) --upgrade --extra cluster --output-file requirements.lock pyproject.toml
	$(PIP_COMPILE) --upgrade --only-build-deps --build-deps-for wheel --output-file requirements-build.lock pyproject.toml

# Of an environment with the locked packages alone: it knows their licences and who needs whom, the lock does not.
sbom: $(VENV)/.dev       ## what the image is made of, as CycloneDX: build/sbom.cdx.json
	$(BIN)/pip install -q --disable-pip-version-check 'cyclonedx-bom>=7.5'
	$(BIN)/python -m venv --clear --without-pip build/sbom
	$(BIN)/pip --python build/sbom/bin/python install -q --disable-pip-version-check --require-hashes --no-deps --only-binary :all: -r requirements.lock
	sed 's/^dynamic = .*/version = "$(VERSION)"/' pyproject.toml > build/sbom/pyproject.toml
	$(BIN)/cyclonedx-py environment --pyproject build/sbom/pyproject.toml --output-reproducible --output-file build/sbom.cdx.json build/sbom/bin/python

# Strict: a package that the database does not know is no clean bill of health. Needs the internet, so no test calls it.
audit: $(VENV)/.dev      ## ask pypi.org whether a locked package has a known vulnerability
	$(BIN)/pip install -q --disable-pip-version-check 'pip-audit>=2.10'
	$(BIN)/pip-audit --strict --disable-pip --require-hashes --requirement requirements.lock
	$(BIN)/pip-audit --strict --disable-pip --require-hashes --requirement requirements-build.lock

clean:                   ## remove what the other targets made
	rm -rf $(VENV) build dist gpuledger my-gpu-exporter tests/nvml/build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis mutants

# What the tests need from Debian, installed when missing: a test without its real part must not pass.
DEBIAN := gcc libc6-dev openssl prometheus prometheus-alertmanager prometheus-node-exporter victoria-metrics openssh-server \
          openssh-client docker-compose systemd chromium tmux valgrind

debian:
	@missing=$$(for p in $(DEBIAN); do dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
	[ -z "$$missing" ] || { echo "installing from Debian:" $$missing; \
	  $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing >/dev/null; }

# What `e2e` needs besides, as COMMAND:PACKAGE: who has the command (containerd from Docker) keeps it.
CLUSTER := /usr/lib/go-1.19/bin/go:golang-1.19-go rsync:rsync dpkg-source:dpkg-dev openssl:openssl \
           etcd:etcd-server containerd:containerd runc:runc debootstrap:debootstrap kubectl:kubernetes-client

debian-cluster:
	@missing=$$(for p in $(CLUSTER); do PATH="$$PATH:/usr/sbin" command -v $${p%%:*} >/dev/null || echo $${p##*:}; done); \
	[ -z "$$missing" ] || { echo "installing from Debian:" $$missing; \
	  $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing >/dev/null; }

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.11 run"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -qq -y --no-install-recommends python3-venv >/dev/null; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml | $(BIN)/python
	$(BIN)/pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.run
