# gpuledger. `make help` lists the targets; start with `make run` and `make test`.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SUDO   := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# Without a GPU, `make run` names the simulator: `--source auto` never invents numbers.
SOURCE ?= $(if $(wildcard /dev/nvidiactl /dev/nvidia0 /dev/dxg),auto,simulator)
FLAGS  ?=
BASE   ?= HEAD
CODE   := src tests benchmarks deploy dev docs
# More workers than cores: the slow tests wait for other programs.
JOBS   ?= $(shell expr $$(nproc) + 4)
# Temporary files of tests are in memory if it has room for them and may hold programs: no test waits for a disk.
SHM       := /dev/shm
IN_MEMORY := $(if $(TMPDIR),,$(shell findmnt -nbo OPTIONS,AVAIL --target $(SHM) 2>/dev/null | \
               awk 'END {if (!/noexec/ && /rw/ && $$2 > 4e9) print "TMPDIR=$(SHM)"}'))
# Tests start the program hundreds of times. Without compiled files each start takes half as long again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help run test quick unit integration cluster e2e release-check lint format docs goldens site dashboards chart manifests screenshots bench prove \
        fuzz mutants build image lock sbom audit clean debian debian-e2e

help:                    ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/:/' | column -t -s: 2>/dev/null \
	  || grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST)

run: $(VENV)/.run        ## serve this machine's GPUs on port 9400, or a simulated node if it has none
	@echo "source: $(SOURCE)$(if $(findstring listen-address,$(FLAGS)),,    page: http://localhost:9400/    metrics: http://localhost:9400/metrics)"
	$(BIN)/gpuledger serve --source $(SOURCE) $(FLAGS)

# Tests start in the order of tests/conftest.py: long ones first, so that short ones fill the cores at the end.
test: $(VENV)/.dev debian  ## all tests except e2e, with a real Prometheus and the test NVML library
	$(IN_MEMORY) $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder tests/integration tests/unit

# An empty list of tests is no error: the change may be in the docs.
quick: lint              ## lint, types, and the unit tests of what changed since BASE=HEAD
	@tests=$$($(BIN)/python dev/changed_tests.py $(BASE)) && [ -z "$$tests" ] || $(BIN)/python -m pytest -q -n $(JOBS) $$tests

unit: $(VENV)/.dev       ## the fast tests
	$(IN_MEMORY) $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder tests/unit

integration: $(VENV)/.dev debian  ## the tests that start real programs
	$(IN_MEMORY) $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder tests/integration

cluster: debian-e2e  ## build Kubernetes for `e2e`, once (some minutes)
	@$(SUDO) tests/cluster/build.sh >/dev/null

e2e: $(VENV)/.dev debian cluster  ## the tests on real Kubernetes, Slurm, Docker and Podman (needs root)
	$(SUDO) $(BIN)/python -B -m pytest -n $(shell expr $$(nproc) \* 2) --dist loadgroup -p no:cacheprovider tests/cluster tests/slurm tests/containers

# Some 15 minutes when all roots, builds and environments are in ~/.cache/gpuledger, an hour when not.
release-check: $(VENV)/.dev debian debian-e2e  ## run what is too long for CI (root), and write date, result and versions into the docs
	$(SUDO) $(BIN)/python -B dev/release_check.py --write docs/development.md

lint: $(VENV)/.dev       ## ruff, mypy strict, import rules, language
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python dev/check_language.py

format: $(VENV)/.dev     ## format the code
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

docs: $(VENV)/.dev       ## generate docs/metrics.md, the tables of settings and Xids, the examples of the API, the picture of the architecture
	$(BIN)/gpuledger metrics --format markdown > docs/metrics.md
	$(BIN)/python dev/write_settings.py
	$(BIN)/python dev/write_xids.py
	PYTHONPATH=src:tests $(BIN)/python tests/api_examples.py src/gpuledger/web/api/examples.json
	$(BIN)/python dev/draw_architecture.py

goldens: $(VENV)/.dev    ## write the golden files of the tests; review the difference
	UPDATE_GOLDENS=1 $(BIN)/python -m pytest -q $$(grep -rl --include='*.py' UPDATE_GOLDENS tests/unit)

site: $(VENV)/.dev       ## build the documentation site: build/site/index.html
	$(BIN)/python -m sphinx -q -W --keep-going -E -a -b html docs build/site

dashboards: $(BIN)/python  ## generate deploy/grafana/dashboards from deploy/grafana/make
	$(BIN)/python -B deploy/grafana/make

chart: $(VENV)/.run      ## generate the chart's schema, README table, dashboards and rules
	$(BIN)/python -B deploy/helm/make

manifests: $(VENV)/.dev chart  ## generate kubernetes/ and deploy/rbac.yaml from the chart
	$(BIN)/python -B deploy/helm/make/manifests.py

screenshots: $(VENV)/.dev debian  ## take the screenshots in docs/pictures of a simulated node (some minutes)
	PYTHONPATH=src:tests $(BIN)/python tests/screenshots.py docs/pictures
	PYTHONPATH=src:tests $(BIN)/python tests/screenshot_top.py docs/pictures/top.png
	PYTHONPATH=src:tests $(BIN)/python tests/screenshot_top.py docs/pictures/top-faults.png faulty-node 100x26

bench: $(VENV)/.dev debian  ## run the benchmarks and write their tables into the docs
	$(BIN)/python benchmarks/node.py --write docs/performance.md
	$(BIN)/python benchmarks/scrapers.py --write docs/performance.md
	$(BIN)/python benchmarks/watchers.py --write docs/performance.md
	$(BIN)/python benchmarks/ledger.py --write docs/performance.md
	$(BIN)/python benchmarks/identity.py --write docs/performance.md
	$(BIN)/python benchmarks/report.py --write docs/performance.md
	$(BIN)/python benchmarks/remote_write.py --write docs/remote-write.md
	$(BIN)/python benchmarks/agent.py --write docs/agent.md
	$(BIN)/python benchmarks/budgets.py --write docs/performance.md

prove: bench             ## run what takes hours: bench, bills, an hour of churn, instruction counts, fuzz
	$(BIN)/python benchmarks/bill.py --write docs/reports.md
	$(BIN)/python benchmarks/finance_month.py --write docs/finance.md
	$(BIN)/python benchmarks/soak.py --write docs/reliability.md
	$(BIN)/python benchmarks/instructions.py --repeat 3 --write docs/performance.md
	$(BIN)/python benchmarks/budgets.py --write docs/performance.md
	$(MAKE) fuzz

EXAMPLES ?= 5000
fuzz: $(VENV)/.dev       ## run every law with fresh seeds, the fuzz tests with EXAMPLES=5000 each
	GPULEDGER_HYPOTHESIS_PROFILE=fresh GPULEDGER_FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -n $(JOBS) -m hypothesis tests/unit

# All mutants take a day or two; MUTANTS='gpuledger.ledger.energy.*' selects some.
MUTANTS ?=
mutants: $(VENV)/.dev    ## mutation testing of ledger, dialects and workloads
	$(BIN)/pip install -q --disable-pip-version-check 'mutmut>=3.8,<4'
	$(BIN)/mutmut run $(MUTANTS)

# `OUT` is the directory of the executable and of the link under its old name.
OUT ?= .
build: $(VENV)/.dev      ## build one executable file, ./gpuledger, for machines with this Python version
	@wheels=$$(mktemp -d) && trap 'rm -r "$$wheels"' EXIT && \
	$(BIN)/python -m pip download -q --disable-pip-version-check -r requirements.lock --require-hashes --no-deps --only-binary :all: -d "$$wheels" && \
	$(BIN)/python -m pex -r requirements.lock --pre-resolved-dists "$$wheels" --sources-directory src --entry-point gpuledger.cli.main:main \
	  --venv --sh-boot --interpreter-constraint "CPython==$$($(BIN)/python -c 'import sys; print("%d.%d.*" % sys.version_info[:2])')" \
	  --output-file $(OUT)/gpuledger
	ln -sf gpuledger $(OUT)/my-gpu-exporter

VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/gpuledger/__init__.py)
IMAGE  ?= gpuledger
image:                   ## build both images with docker (or DOCKER=podman)
	$(or $(DOCKER),docker) build --build-arg REVISION=$$(git rev-parse HEAD) -t $(IMAGE):$(VERSION) .
	$(or $(DOCKER),docker) build --build-arg REVISION=$$(git rev-parse HEAD) -t $(IMAGE):$(VERSION)-smi --target smi .

PIP_COMPILE = $(BIN)/pip-compile -q --generate-hashes --strip-extras --no-header --no-emit-index-url --no-emit-find-links
lock: $(VENV)/.dev       ## pin the newest dependencies of image and executable, with hashes
	$(BIN)/pip install -q --disable-pip-version-check pip-tools
	$(PIP_COMPILE) --upgrade --extra cluster --output-file requirements.lock pyproject.toml
	$(PIP_COMPILE) --upgrade --only-build-deps --build-deps-for wheel --output-file requirements-build.lock pyproject.toml

# Made from an environment with the locked packages only: the lock file has neither licenses nor dependencies.
sbom: $(VENV)/.dev       ## software bill of materials of the image (CycloneDX): build/sbom.cdx.json
	$(BIN)/pip install -q --disable-pip-version-check 'cyclonedx-bom>=7.5'
	$(BIN)/python -m venv --clear --without-pip build/sbom
	$(BIN)/pip --python build/sbom/bin/python install -q --disable-pip-version-check --require-hashes --no-deps --only-binary :all: -r requirements.lock
	sed 's/^dynamic = .*/version = "$(VERSION)"/' pyproject.toml > build/sbom/pyproject.toml
	$(BIN)/cyclonedx-py environment --pyproject build/sbom/pyproject.toml --output-reproducible --output-file build/sbom.cdx.json build/sbom/bin/python

# Strict: a package that the database does not know is an error. Needs the internet, so no test runs it.
audit: $(VENV)/.dev      ## check the locked packages for known vulnerabilities (pypi.org)
	$(BIN)/pip install -q --disable-pip-version-check 'pip-audit>=2.10'
	$(BIN)/pip-audit --strict --disable-pip --require-hashes --requirement requirements.lock
	$(BIN)/pip-audit --strict --disable-pip --require-hashes --requirement requirements-build.lock

clean:                   ## remove what the other targets made
	rm -rf $(VENV) build dist gpuledger my-gpu-exporter tests/nvml/build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis mutants

# Debian packages that the tests need. They are installed when missing: no test is skipped for want of one.
DEBIAN := gcc libc6-dev openssl prometheus prometheus-alertmanager prometheus-node-exporter victoria-metrics openssh-server \
          openssh-client docker-compose systemd chromium-headless-shell tmux valgrind

debian:
	@missing=$$(for p in $(DEBIAN); do dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
	[ -z "$$missing" ] || { echo "installing from Debian:" $$missing; \
	  $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing >/dev/null; }

# What `e2e` needs as well, as COMMAND:PACKAGE. An existing command (containerd from Docker) is kept.
E2E := /usr/lib/go-1.19/bin/go:golang-1.19-go rsync:rsync dpkg-source:dpkg-dev openssl:openssl \
       etcd:etcd-server containerd:containerd runc:runc kubectl:kubernetes-client \
       slurmctld:slurmctld slurmd:slurmd slurmdbd:slurmdbd sbatch:slurm-client munged:munge mariadbd:mariadb-server-core \
       dockerd:docker.io podman:podman newuidmap:uidmap mmdebstrap:mmdebstrap

debian-e2e:
	@missing=$$(for p in $(E2E); do PATH="$$PATH:/usr/sbin" command -v $${p%%:*} >/dev/null || echo $${p##*:}; done); \
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
