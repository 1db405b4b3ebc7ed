# Every target sets up what it needs; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.autorep-setup
DEV_STAMP := $(VENV)/.autorep-setup-dev
INPUTS := pyproject.toml CMakeLists.txt constraints.txt $(wildcard src/autorep/_native/cpp/*)

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test test-slow lint format bench bench-full soak readme clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: $(STAMP)  ## create .venv and install the package with what the demo needs
setup-dev: $(DEV_STAMP)  ## the same with the development tools

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP): $(INPUTS) | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch numpy
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[serve,report]'
	@touch $@

$(DEV_STAMP): $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[serve,report,dev]'
	@touch $@

demo: setup  ## train, replace, compile, serve and predict privately on embedded digits
	$(BIN)/autorep demo

test: setup-dev  ## the test suite (minutes)
	$(BIN)/python -m pytest -n 2

test-slow: setup-dev  ## the checks that take many minutes
	$(BIN)/python -m pytest -m slow

lint: setup-dev  ## ruff (lint and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup-dev  ## let ruff rewrite the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove everything that was built or written
	rm -rf $(VENV) build dist demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
