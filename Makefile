# Every target sets up what it needs. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help setup tools run demo test lint pytest soak soak-commit soak-processes endure fuzz bench bench-peers bench-spark wheel deb man docs lock clean
.DEFAULT_GOAL := help

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 16

setup: $(STAMP) ## the environment in .venv

$(STAMP): pyproject.toml constraints-build.txt constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mail-replicator needs Python 3.11 or later; set PYTHON=/path/to/python3.11")'
	@echo 'Setting up $(VENV), which takes about half a minute ...' >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) --require-hashes --requirement constraints-build.txt
	@$(INSTALL) --require-hashes --no-build-isolation --requirement constraints.txt
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

run: setup ## a three-node cluster on this machine, data under var/
	@$(BIN)/replicator cluster run --nodes 3 --dir var

demo: setup ## three nodes whose links break and come back, told and checked, in under a minute
	@$(BIN)/python -m benchmarks.demo

lint: setup ## style, types and layers, without the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unexport PYTHONDONTWRITEBYTECODE  # else each of the hundreds of nodes that tests start compiles itself again

test: setup ## style, types, layers and tests; CI tries more of the same (docs/testing.md)
	@$(MAKE) --no-print-directory --jobs=2 lint pytest

pytest: setup ## the tests alone
	$(BIN)/pytest --numprocesses auto --dist loadscope --no-loadscope-reorder

SEEDS ?= 1000
FIRST_SEED ?= 100000
soak: setup ## simulated clusters on all cores, SEEDS=n of them, from FIRST_SEED=n on
	$(BIN)/python -m tests.simulation.soak --seeds $(SEEDS) --first $(FIRST_SEED)

soak-commit: setup ## the seeds that CI tries of this commit, SEEDS=n of them
	$(BIN)/python -m tests.simulation.soak --seeds $(SEEDS) --of-commit

ROUNDS ?= 10
soak-processes: setup ## real processes behind bad links, ROUNDS=n campaigns, from FIRST_SEED=n on, NODES=n
	ROUNDS=$(ROUNDS) FIRST_SEED=$(FIRST_SEED) $(BIN)/pytest tests/end_to_end/faults/campaign.py

endure: MINUTES := 120
endure: setup ## three nodes under load for MINUTES=n, with faults, restarts and reloads; nothing may grow
	MINUTES=$(MINUTES) FIRST_SEED=$(FIRST_SEED) $(BIN)/pytest --capture=no tests/end_to_end/faults/endurance.py

tools: setup ## what few need: for `make fuzz`, `make lock` and profiles
	@$(INSTALL) --require-hashes --requirement constraints-tools.txt

MINUTES ?= 5
fuzz: tools ## hostile input for all parsers and links, and users amid syncs with Dovecot, MINUTES=n in all
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

bench: setup ## the figures, as a table and as JSON
	$(BIN)/python -m benchmarks

bench-peers: setup ## the same loads for two nodes, a Dovecot pair and a Cyrus pair (docs/comparison.md); QUICK=1 in minutes
	$(BIN)/python -m benchmarks.peers $(if $(QUICK),--quick)

bench-spark: setup ## what audits of whole nodes cost at 1, 3 and 10 million messages each
	$(BIN)/python -m benchmarks.spark

wheel: setup ## the wheel, in dist/
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

deb: setup ## the Debian package, in dist/; it brings its own Python libraries
	@PYTHON=$(BIN)/python deploy/debian/build dist

man: setup ## the manual pages, in dist/man/
	@$(BIN)/python -m replicator.cli.manual dist/man

DOCS := .venv-docs
docs: $(DOCS)/.complete ## the documents as a site, in dist/site/; `SERVE=1` shows it on http://127.0.0.1:8000
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs $(if $(SERVE),serve,build)

$(DOCS)/.complete: constraints-docs.txt
	@echo 'Setting up $(DOCS), which takes about half a minute ...' >&2
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: --requirement constraints-docs.txt
	@touch $@

LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate $(if $(UPGRADE),--upgrade)
lock: tools ## pin what is installed, with the hashes of all its files; UPGRADE=1 takes the newest versions
	@$(LOCK) --group build --output-file constraints-build.txt
	@$(LOCK) --constraint constraints-build.txt pyproject.toml --all-extras --group dev --output-file constraints.txt
	@$(LOCK) --constraint constraints.txt pyproject.toml --extra inventory --extra ldap --output-file constraints-node.txt
	@$(LOCK) --group tools --output-file constraints-tools.txt
	@$(LOCK) --constraint constraints.txt --group docs --output-file constraints-docs.txt

clean: ## remove the environment; mail under var/ stays
	rm -rf $(VENV) $(DOCS) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
