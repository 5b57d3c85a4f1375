# `make demo` and `make test` set up everything they need, in .venv, from requirements.lock.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test setup lint types imports unit format lock clean

demo: setup  ## train on the pictures inside the package and write a report
	$(BIN)/onsight train demo

test: setup lint types imports unit  ## everything that must hold before a change lands

setup: .venv/installed

.venv/installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Onsight needs Python 3.11 or later; name one by: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

lint:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types:
	$(BIN)/mypy

imports:
	$(BIN)/lint-imports

unit:
	$(BIN)/pytest

format: setup  ## put every file into the usual form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock:  ## choose the newest versions that pyproject.toml allows
	uv pip compile pyproject.toml --group dev --all-extras --universal --python-version 3.11 \
		--generate-hashes --no-header --quiet --upgrade --output-file requirements.lock

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
