# Everything starts here: `make demo` shows choral at work, `make test` runs what continuous integration runs.
# Python 3.11 or newer; name another with make PYTHON=python3.12
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

# The methods of the README's "Which method?" with one budget, at which each has its steps; all methods with make demo METHODS=all
METHODS := single,deep_ensemble,snapshot,mc_dropout,prune_and_tune,packed,batch_ensemble,anchored

.PHONY: help setup demo test test-all browser lint format bench docs clean

help:
	@echo "make setup   make $(VENV) and install choral with pinned versions"
	@echo "make demo    compare eight methods on the digits data, five seeds each, and write a report"
	@echo "make test    the whole quick test suite"
	@echo "make test-all the same, and every method on every awkward network (an hour or two)"
	@echo "make browser install Chromium for the tests of the report (Debian, as root)"
	@echo "make lint    formatter, linter and type checker"
	@echo "make docs    the documentation site, in docs/_build/html; its tutorials are run (a few minutes)"
	@echo "make bench   the speed ratios (benchmarks/engine.py)"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -e '.[tables,plots,images]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install -e '.[tables,plots,images,dev]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) install -e '.[tables,plots,images,docs]'
	@touch $@

setup: $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/choral compare digits --methods $(METHODS) --budget 90 --seeds 5 --out demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'full or not full'

browser:
	command -v chromium || (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/engine.py

# Warnings are errors. CHORAL_GALLERY=False shows the tutorials without running them.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo docs/_build/html/index.html

clean:
	rm -rf $(VENV) demo runs build dist docs/_build docs/gallery docs/methods docs/reference/generated
