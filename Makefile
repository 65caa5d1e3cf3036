# `make` lists what can be made. VENV and PYTHON choose another environment.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: help setup check test try docs

help:
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 8

setup: ## make the environment, with all that the checks need
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'

check: ## before each commit: lint, format, imports, conventions, types (seconds, once they are cached)
	@test -x $(BIN)/ruff || { echo "there is no $(BIN)/ruff: make setup" >&2; exit 2; }
	$(BIN)/ruff check .
	$(BIN)/ruff format --check -q .
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/test_repository.py
	$(BIN)/mypy

test: ## unit tests: make test T=gateway, T=conf, T=tasks/harbor; all of them without T
	$(BIN)/pytest -q $(if $(T),$(or $(wildcard tests/$(T) tests/runners/$(T)),$(error there is no tests/$(T) or tests/runners/$(T))),-n 2)

try: ## a small campaign that shows a rising curve, in a minute
	$(BIN)/agentrl run run.steps=4 run.eval_tasks=32

docs: ## build the documentation into build/site
	$(BIN)/mkdocs build --strict
