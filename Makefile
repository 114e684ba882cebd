# gpuledger. `make help` lists the targets; start with `make run` and `make test`.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SUDO   := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# Without a GPU, `make run` starts `gpuledger demo`: `--source auto` never invents numbers.
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
.PHONY: help run test quick unit integration hardware cluster e2e release-check lint format docs goldens man site dashboards chart manifests screenshots bench prove prove-again \
        fuzz mutants build image release release-version release-notes checksums wheel executables packages chart-package image-archive push-images lock sbom audit clean debian debian-e2e

help:                    ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/:/' | column -t -s: 2>/dev/null \
	  || grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST)

run: $(VENV)/.run        ## serve this machine's GPUs on port 9400, or a demo with simulated ones if it has none
	@$(BIN)/gpuledger $(if $(filter simulator%,$(SOURCE)),demo $(if $(filter simulator,$(SOURCE)),,--source $(SOURCE)),serve --source $(SOURCE)) $(FLAGS)

# Tests start in the order of tests/conftest.py: long ones first, so that short ones fill the cores at the end.
test: $(VENV)/.dev debian  ## all tests except e2e, with a real Prometheus and the test NVML library
	$(IN_MEMORY) $(BIN)/python -m pytest --workers $(JOBS) tests/integration tests/unit

# An empty list of tests is no error: the change may be in the docs.
quick: lint              ## lint, types, and the unit tests of what changed since BASE=HEAD
	@tests=$$($(BIN)/python dev/changed_tests.py $(BASE)) || exit 1; \
	[ -z "$$tests" ] || $(IN_MEMORY) $(BIN)/python -m pytest -q --workers $(JOBS) $$tests

unit: $(VENV)/.dev       ## the fast tests
	$(IN_MEMORY) $(BIN)/python -m pytest --workers $(JOBS) tests/unit

integration: $(VENV)/.dev debian  ## the tests that start real programs
	$(IN_MEMORY) $(BIN)/python -m pytest --workers $(JOBS) tests/integration

cluster: debian-e2e  ## build Kubernetes for `e2e`, once (some minutes)
	@$(SUDO) tests/cluster/build.sh >/dev/null

e2e: $(VENV)/.dev debian cluster  ## the tests on real Kubernetes, Slurm, Docker and Podman (needs root)
	$(SUDO) $(BIN)/python -B -m pytest --workers $(shell expr $$(nproc) \* 2) -p no:cacheprovider tests/cluster tests/slurm tests/containers tests/packages

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
	$(BIN)/python dev/write_smi_columns.py
	PYTHONPATH=src:tests $(BIN)/python tests/api_examples.py src/gpuledger/web/api/examples.json
	$(BIN)/python dev/draw_architecture.py

goldens: $(VENV)/.dev    ## write the golden files of the tests; review the difference
	UPDATE_GOLDENS=1 $(BIN)/python -m pytest -q $$(grep -rl --include='*.py' UPDATE_GOLDENS tests/unit)

man: $(VENV)/.run        ## write the man pages: build/man
	$(BIN)/gpuledger man --output build/man

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
	PYTHONPATH=src:tests $(BIN)/python tests/screenshot_top.py docs/pictures/top-tree.png tree 100x14

# The benchmarks, in this order, and the pages of their tables. An interrupted `make prove` goes on after its last part.
TIMED  := node scrapers watchers ledger identity report remote_write agent fleet budgets
PROOFS := bill finance_month split_error energy_error instructions $(TIMED) fleet_scale soak fuzz
PAGE_remote_write  := remote-write
PAGE_agent         := agent
PAGE_fleet         := fleet
PAGE_fleet_scale   := fleet
PAGE_bill          := reports
PAGE_finance_month := finance
PAGE_split_error   := concepts/ledgers
PAGE_energy_error  := concepts/energy
PAGE_soak          := reliability
FLAGS_instructions := --repeat 3

build/prove/%: | $(VENV)/.dev
	$(BIN)/python benchmarks/$*.py $(FLAGS_$*) --write docs/$(or $(PAGE_$*),performance).md
	@mkdir -p $(@D) && touch $@

build/prove/fuzz: | $(VENV)/.dev
	$(MAKE) fuzz
	@mkdir -p $(@D) && touch $@

bench: $(VENV)/.dev debian  ## run the benchmarks and write their tables into the docs
	rm -f $(TIMED:%=build/prove/%)
	$(MAKE) $(TIMED:%=build/prove/%)

prove: $(VENV)/.dev debian  ## run what takes hours (bench, bills, errors, an hour of churn, fuzz); goes on where it stopped
	$(MAKE) $(PROOFS:%=build/prove/%)

prove-again:             ## the same from the beginning
	rm -rf build/prove
	$(MAKE) prove

# HARDWARE='--gpu 1 --processes 140' passes options.
HARDWARE ?=
hardware: $(VENV)/.dev   ## test this machine's NVIDIA GPU with known loads (5 minutes): build/hardware/report.md
	$(BIN)/python tests/hardware/run.py --out build/hardware $(HARDWARE)

EXAMPLES ?= 5000
fuzz: $(VENV)/.dev       ## run every law with fresh seeds, the fuzz tests with EXAMPLES=5000 each
	GPULEDGER_HYPOTHESIS_PROFILE=fresh GPULEDGER_FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest --workers $(JOBS) -m hypothesis tests/unit

# All mutants take a day or two; MUTANTS='gpuledger.ledger.energy.*' selects some.
MUTANTS ?=
mutants: $(VENV)/.dev    ## mutation testing of ledger, dialects and workloads
	$(BIN)/pip install -q --disable-pip-version-check 'mutmut>=3.8,<4'
	$(BIN)/mutmut run $(MUTANTS)

# `OUT` is the directory of the executable and of the link under its old name.
OUT ?= .
build: $(BIN)/python     ## build one executable file, ./gpuledger, that needs no Python (some minutes)
	deploy/packages/freeze.sh $(BIN)/python build/frozen onefile
	cp build/frozen/gpuledger-onefile $(OUT)/gpuledger
	ln -sf gpuledger $(OUT)/my-gpu-exporter

VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/gpuledger/__init__.py)
IMAGE  ?= gpuledger
image:                   ## build both images with docker (or DOCKER=podman)
	$(or $(DOCKER),docker) build --build-arg REVISION=$$(git rev-parse HEAD) --build-arg VERSION=$(VERSION) -t $(IMAGE):$(VERSION) .
	$(or $(DOCKER),docker) build --build-arg REVISION=$$(git rev-parse HEAD) --build-arg VERSION=$(VERSION) -t $(IMAGE):$(VERSION)-smi --target smi .

# What a release consists of lies in dist. docs/releasing.md is the procedure.
DIST         := dist
ARCHITECTURE := $(shell uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')
MAINTAINER   ?= gpuledger developers <maintainers@localhost>
FREEZE       ?= deploy/packages/freeze_for_old_glibc.sh
release: wheel executables packages chart-package image-archive sbom checksums  ## make all artifacts of a release in dist (root, docker, skopeo)

release-version:         ## check that TAG is the version of program, chart and image, and has a part in CHANGELOG.md
	@[ "$(TAG)" = "v$(VERSION)" ] || { echo "the tag is $(TAG), src/gpuledger/__init__.py says $(VERSION)"; exit 1; }
	@grep -qx '## $(subst .,[.],$(VERSION)) - 20..-..-..' CHANGELOG.md || { echo "CHANGELOG.md has no part '## $(VERSION) - DATE'"; exit 1; }

release-notes:           ## print the part of this version in CHANGELOG.md
	@awk '/^## /{shown = ($$2 == "$(VERSION)")} shown' CHANGELOG.md

checksums:               ## dist: SHA256SUMS of all artifacts
	cd $(DIST) && rm -f SHA256SUMS && sha256sum $$(find . -type f -printf '%P\n' | sort) > SHA256SUMS

wheel: $(VENV)/.dev      ## dist: wheel and source archive, for pip, pipx and uv
	rm -f $(DIST)/gpuledger-*.whl $(DIST)/gpuledger-*.tar.gz
	$(BIN)/python -m build --outdir $(DIST) >/dev/null

# FREEZE='deploy/packages/freeze.sh python3' makes them for machines with this machine's glibc, in a minute.
executables:             ## dist: executables for x86-64 or arm64 that need no Python, as a folder and as one file
	$(FREEZE) build/frozen
	mkdir -p $(DIST)
	tar -C build/frozen --owner 0 --group 0 -cJf $(DIST)/gpuledger-$(VERSION)-linux-$(ARCHITECTURE).tar.xz gpuledger
	cp build/frozen/gpuledger-onefile $(DIST)/gpuledger-$(VERSION)-linux-$(ARCHITECTURE)

packages: $(VENV)/.dev   ## dist: .deb and .rpm of build/frozen, which `make executables` makes
	deploy/packages/make_packages.sh build/frozen $(DIST) $(BIN)/nfpm $(VERSION) $(ARCHITECTURE) '$(MAINTAINER)'

chart-package: $(VENV)/.dev chart     ## dist: the chart, packed by Helm
	mkdir -p $(DIST)
	$(BIN)/python -c 'import sys; from helm_python import package; package("deploy/helm/gpuledger", destination=sys.argv[1])' $(DIST)

image-archive: image     ## dist: both images as OCI archives, for `podman load` and `skopeo copy`
	mkdir -p $(DIST)
	for tag in $(VERSION) $(VERSION)-smi; do \
	  skopeo copy -q docker-daemon:$(IMAGE):$$tag oci-archive:$(DIST)/gpuledger-$$tag-linux-$(ARCHITECTURE).oci.tar:$$tag || exit 1; done

# One tag for all architectures. Podman reads what `podman login` has stored: a password in a command
# line can be read in logs and by other users.
push-images:             ## push the archives in dist to REGISTRY with podman, after a login
	for tag in $(VERSION) $(VERSION)-smi; do \
	  image=$(REGISTRY)/gpuledger:$$tag; \
	  podman manifest create $$image >/dev/null || exit 1; \
	  for file in $(DIST)/gpuledger-$$tag-linux-*.oci.tar; do \
	    podman manifest add $$image oci-archive:$$file >/dev/null || exit 1; \
	  done; \
	  podman manifest push --quiet --all --rm $$image docker://$$image || exit 1; done

PIP_COMPILE = $(BIN)/pip-compile -q --generate-hashes --strip-extras --no-header --no-emit-index-url --no-emit-find-links
lock: $(VENV)/.dev       ## pin the newest dependencies of image and executable, with hashes
	$(BIN)/pip install -q --disable-pip-version-check pip-tools
	$(PIP_COMPILE) --upgrade --extra cluster --extra migrate --output-file requirements.lock pyproject.toml
	$(PIP_COMPILE) --upgrade --only-build-deps --build-deps-for wheel --output-file requirements-build.lock pyproject.toml
	echo pyinstaller | $(PIP_COMPILE) --upgrade --allow-unsafe --output-file requirements-release.lock -

# Made from an environment with the locked packages only: the lock file has neither licenses nor dependencies.
sbom: $(VENV)/.dev       ## dist: software bill of materials of image and executables (CycloneDX)
	$(BIN)/pip install -q --disable-pip-version-check 'cyclonedx-bom>=7.5'
	mkdir -p $(DIST)
	$(BIN)/python -m venv --clear --without-pip build/sbom
	$(BIN)/pip --python build/sbom/bin/python install -q --disable-pip-version-check --require-hashes --no-deps --only-binary :all: -r requirements.lock
	sed 's/^dynamic = .*/version = "$(VERSION)"/' pyproject.toml > build/sbom/pyproject.toml
	$(BIN)/cyclonedx-py environment --pyproject build/sbom/pyproject.toml --output-reproducible --output-file $(DIST)/gpuledger-$(VERSION).cdx.json build/sbom/bin/python

# Strict: a package that the database does not know is an error. Needs the internet, so no test runs it.
audit: $(VENV)/.dev      ## check the locked packages for known vulnerabilities (pypi.org)
	$(BIN)/pip install -q --disable-pip-version-check 'pip-audit>=2.10'
	$(BIN)/pip-audit --strict --disable-pip --require-hashes --requirement requirements.lock
	$(BIN)/pip-audit --strict --disable-pip --require-hashes --requirement requirements-build.lock

clean:                   ## remove what the other targets made
	rm -rf $(VENV) build dist gpuledger my-gpu-exporter tests/nvml/build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis mutants

# Debian packages that the tests need. They are installed when missing: no test is skipped for want of one.
DEBIAN := gcc libc6-dev openssl zsh fish mandoc prometheus prometheus-alertmanager prometheus-node-exporter victoria-metrics openssh-server \
          openssh-client docker-compose systemd chromium-headless-shell tmux valgrind

debian:
	@missing=$$(for p in $(DEBIAN); do dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
	[ -z "$$missing" ] || { echo "installing from Debian:" $$missing; \
	  $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing >/dev/null; }

# What `e2e` needs as well, as COMMAND:PACKAGE. An existing command (containerd from Docker) is kept.
E2E := /usr/lib/go-1.19/bin/go:golang-1.19-go rsync:rsync dpkg-source:dpkg-dev openssl:openssl \
       etcd:etcd-server containerd:containerd runc:runc kubectl:kubernetes-client \
       slurmctld:slurmctld slurmd:slurmd slurmdbd:slurmdbd sbatch:slurm-client munged:munge mariadbd:mariadb-server-core \
       dockerd:docker.io podman:podman newuidmap:uidmap mmdebstrap:mmdebstrap ip:iproute2 curl:curl

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
