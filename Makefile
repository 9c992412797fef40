# Each target makes .venv and installs what it needs, once; the second time it is instant and needs no network.
# PYTHON=python3.12 chooses another interpreter; EQUIPOISE_DATA=DIR names the development data (default ../shared/data).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
# What `make lock` wrote, to the hash. What is then installed beside it is the package itself, and torch.
LOCKED := $(PIP) install --no-deps --require-hashes --requirement
EQUIPOISE_DATA ?= ../shared/data
export override EQUIPOISE_DATA := $(abspath $(EQUIPOISE_DATA))
# Images of containers often set this; each of the many processes of tests would then compile every module it imports.
unexport PYTHONDONTWRITEBYTECODE

# What installing writes, read ten times as fast as the tables it is of: written anew where one has changed since.
KEPT := src/equipoise/data/parsed/records.msgpack

.DELETE_ON_ERROR:
.PHONY: help report test lint check dataset bench experiments fuzz accuracy profiles docs site lock dist lower sbom clean wheel

help: ## say what each target does
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

report: $(KEPT) ## write report.html, the scaling study of MLPerf Training v4.1
	@$(BIN)/equipoise report --out report.html
	@echo "The study is in $(CURDIR)/report.html: open it in a browser."

# Four more than there are cores, at most 6: many tests wait for processes that they start.
WORKERS = $(shell $(BIN)/python -c 'import os; print(min(6, os.cpu_count() + 4))')
test: $(VENV)/dev.stamp $(KEPT) ## run every test, and the examples in docstrings
# A file stays on one worker, which makes what it shares once; tests/conftest.py puts the slow files first.
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: $(VENV)/dev.stamp ## run what CI runs: ruff, mypy --strict, the site, tests
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint site
	$(MAKE) --no-print-directory test

dataset: $(VENV)/core.stamp ## write src/equipoise/data from the rounds in $EQUIPOISE_DATA/mlperf
	$(BIN)/python docs/dataset.py
	$(BIN)/python records/calibrations.py forecast trends advice

bench: $(VENV)/dev.stamp $(KEPT) ## run the benchmarks, each with a ratio against something outside
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit; done

experiments: $(VENV)/dev.stamp ## repeat, as root, what was measured on two emulated hosts: docs/experiments/0011 on
	$(BIN)/python experiments/two_hosts.py
	$(BIN)/python experiments/two_hosts_page.py
	$(BIN)/python experiments/predicted_steps.py --write
	$(BIN)/python experiments/find.py --write docs/experiments/0016-find.md
	$(BIN)/python experiments/convergence.py --minutes 90
	$(BIN)/python experiments/kills.py

fuzz: $(VENV)/fuzz.stamp ## fuzz every reader of files, SECONDS=20 each; CORPUS=DIR keeps the inputs
	$(BIN)/python fuzz/run.py --seconds $(or $(SECONDS),20) $(if $(CORPUS),--corpus $(CORPUS))

accuracy: $(VENV)/dev.stamp ## hold the performance model against measurements: docs/understand/accuracy.md
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/accuracy.py --write docs/understand/accuracy.md

profiles: $(VENV)/core.stamp ## fit the profiles that ship to $EQUIPOISE_DATA/measured, and their error records
	OMP_NUM_THREADS=1 $(BIN)/python records/calibrations.py software deviates steps memory
	OMP_NUM_THREADS=1 $(BIN)/python records/plans.py
	OMP_NUM_THREADS=1 $(BIN)/python records/combined.py
	OMP_NUM_THREADS=1 $(BIN)/python records/combined.py advice
	OMP_NUM_THREADS=1 $(BIN)/python records/transfer.py

docs: $(VENV)/core.stamp ## run every command of the README and docs again and write its output there
	$(BIN)/python docs/sessions.py

site: $(VENV)/dev.stamp ## build the documentation as a site: open site/index.html in a browser
	@$(BIN)/zensical build --clean --strict
	@echo "The documentation is in $(CURDIR)/site: open index.html in a browser."

lock: ## write requirements/ anew: the newest versions, and the lowest that pyproject.toml allows
	@test -e $(BIN)/uv || { $(PYTHON) -m venv $(VENV) && $(PIP) install uv; }
	@UV=$(BIN)/uv .ci/lock

wheel: $(VENV)/dev.stamp
	@rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python .ci/contents.py dist

dist: wheel ## build wheel and sdist into dist/, check what is in them, use them on each Python at hand, or on PYTHONS="3.12 3.13"
	.ci/matrix dist/*.whl requirements/core.txt $(PYTHONS)

lower: wheel ## use the wheel with the lowest versions that pyproject.toml allows
	.ci/matrix dist/*.whl requirements/lower.txt 3.11

sbom: $(VENV)/dev.stamp ## list what an installed Equipoise consists of, as CycloneDX: dist/equipoise.cdx.json
	@mkdir -p dist
	@rm -rf build/sbom build/parts
	@for name in sbom parts; do $(PYTHON) -m venv --without-pip build/$$name || exit; done
	@$(BIN)/uv pip install --quiet --python build/sbom --no-deps --require-hashes --requirement requirements/core.txt
	@$(BIN)/uv pip install --quiet --python build/sbom --no-deps .
	@$(BIN)/uv pip install --quiet --python build/parts --no-deps --require-hashes --requirement requirements/parts.txt
# It names the folder of this checkout, which means nothing elsewhere.
	@rm build/sbom/lib/python*/site-packages/equipoise-*.dist-info/direct_url.json
	@build/parts/bin/cyclonedx-py environment --output-reproducible --output-file dist/equipoise.cdx.json build/sbom
	@! grep "file://" dist/equipoise.cdx.json
	@echo "The list is in dist/equipoise.cdx.json."

clean: ## remove the environment, caches, report.html and the site
	rm -rf $(VENV) build dist report.html site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/core.stamp: pyproject.toml requirements/core.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("equipoise needs Python 3.11 or newer, found %d.%d: make PYTHON=python3.11" % sys.version_info[:2])'
	@echo "Installing into $(VENV), once."
	@$(PYTHON) -m venv $(VENV)
# Compiling every module of every library takes as long as the rest; those that run are compiled then. Building the
# package needs none of them: it is built while they are installed.
	@$(LOCKED) requirements/core.txt --no-compile & locked=$$!; $(PIP) install --no-compile --no-deps --editable . && wait $$locked
	@touch $@

$(KEPT): $(shell find src/equipoise -name '*.toml') $(wildcard src/equipoise/*.py src/equipoise/spec/*.py) | $(VENV)/core.stamp
	@$(BIN)/python -c 'from equipoise.files import keep_tables as tables; from equipoise.spec.catalogue import keep_shipped as records; tables(); records()'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/core.stamp requirements/dev.txt
	@$(LOCKED) requirements/dev.txt --no-compile
	@$(PIP) install --no-compile --editable '.[check,docs,release]'
	@touch $@

$(VENV)/fuzz.stamp: $(VENV)/dev.stamp
	@$(PIP) install --editable '.[fuzz]'
	@touch $@
