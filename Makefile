PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup setup-dev demo test test-all lint clean

setup:
	@$(PYTHON) bootstrap.py

setup-dev:
	@$(PYTHON) bootstrap.py --dev

demo: setup
	@$(BIN)/photinus demo

test: setup-dev
	$(BIN)/python -m pytest -q -m "not slow"

test-all: setup-dev
	$(BIN)/python -m pytest -q -rs --durations=30

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy --strict

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
