# Each target sets up its own .venv on first use and is quick after that.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test slow gpu network lint format bench readme docs clean

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "seedbed needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv

.venv/.installed-%: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[$*]'
	@touch $@

demo: .venv/.installed-demo
	$(BIN)/seedbed demo

test: .venv/.installed-test
	$(BIN)/python -m pytest -n auto --dist worksteal

slow gpu network: .venv/.installed-test
	$(BIN)/python -m pytest -m $@

# mypy and the import contract see only real package trees, so they read the package as installed.
lint: .venv/.installed-dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	@rm -rf build/typing build/lib build/bdist.*
	$(PIP) --no-deps --target build/typing .
	cd build/typing && MYPYPATH=. ../../$(BIN)/mypy --config-file ../../pyproject.toml -p seedbed
	cd build/typing && PYTHONPATH=. ../../$(BIN)/lint-imports ../../pyproject.toml --no-cache

format: .venv/.installed-dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: .venv/.installed-test
	$(BIN)/python -m benchmarks

readme: .venv/.installed-test
	$(BIN)/python -m benchmarks.tables

# Sphinx writes pages of its own beside its sources, so it gets a folder under build/ as its source.
docs: .venv/.installed-docs
	@rm -rf build/docs && mkdir -p build/docs/src
	cp docs/index.rst build/docs/src
	MPLBACKEND=agg $(BIN)/sphinx-build -c docs build/docs/src build/docs/html

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
