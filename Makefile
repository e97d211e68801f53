# Everything a newcomer needs: make demo, make test, make check. Only Python >= 3.11, git and make are asked for.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: install dev demo test check accuracy bench clean

install: $(VENV)/.installed
dev: $(VENV)/.dev

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat -e '.[dev]'
	@touch $@ $(VENV)/.installed

demo: install
	$(BIN)/lcplan demo

test: dev
	$(BIN)/python -m pytest -n auto --dist loadfile

check: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

accuracy: dev
	$(BIN)/python tests/accuracy.py

bench: dev
	for script in tests/benchmarks/*.py; do \
		echo "== $$script"; $(BIN)/python -m tests.benchmarks.$$(basename $$script .py) || exit 1; done

clean:
	rm -rf $(VENV) build lcplan-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
