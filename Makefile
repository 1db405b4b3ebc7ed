# Every target sets up what it needs; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.autorep-setup
DEV_STAMP := $(VENV)/.autorep-setup-dev
INPUTS := pyproject.toml CMakeLists.txt constraints.txt $(wildcard src/autorep/_native/cpp/*)

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test test-slow lint format bench bench-full readme figures soak chaos mutants arm clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: $(STAMP)  ## create .venv and install the package with what the demo needs
setup-dev: $(DEV_STAMP)  ## the same with the development tools

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP): $(INPUTS) | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch numpy
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,serve,report]'
	@touch $@

$(DEV_STAMP): $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,serve,report,tensorboard,dev]'
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

bench: setup  ## measure the headline set (under 15 minutes)
	$(BIN)/autorep bench all

bench-full: setup  ## measure everything, for long
	$(BIN)/autorep bench all --scope full

readme: setup  ## write the documents' tables and figures from bench/results
	$(BIN)/autorep bench tables
	$(MAKE) figures

figures: setup  ## draw the report, and the figures that the README and docs show
	$(BIN)/autorep report bench/results src/autorep/zoo --out build/report/report.html
	cd build/report/figures && cp frontier-latency.svg breakdown-resnet18-32.svg \
	    maps-cifar10-resnet20-relu3pct.svg processor.svg ../../../docs/figures/

soak: setup-dev  ## thousands of queries from several clients, every answer checked (10 minutes)
	$(BIN)/python tests/service/soak.py

chaos: setup-dev  ## every fault of an operator's life under load, seeded (10 minutes)
	PYTHONPATH=. $(BIN)/python tests/service/chaos.py

mutants: setup-dev  ## break each promise in the sources on purpose; a named test must notice every time (minutes)
	$(BIN)/python -m tests.mutants.run

# The kernels for ARM, without Python, under an emulator. What only Python would call is compiled, and not linked.
ARM := build/arm
ARM_CXX ?= aarch64-linux-gnu-g++
ARM_RUN ?= qemu-aarch64 -L /usr/aarch64-linux-gnu
ARM_SOURCES := $(filter-out %/module.cpp %/dcf.cpp %/sign.cpp %/runtime.cpp,$(wildcard src/autorep/_native/cpp/*.cpp))
ARM_OBJECTS := $(patsubst src/autorep/_native/cpp/%.cpp,$(ARM)/%.o,$(ARM_SOURCES)) $(ARM)/known_answers.o

arm: $(ARM)/known_answers  ## build the kernels for ARM and check their answers (g++-aarch64-linux-gnu, qemu-user)
	for level in portable neon; do \
	    $(ARM_RUN) $< $$level | diff tests/native/known_answers.txt - && echo "ARM, $$level: as known" || exit 1; done

$(ARM)/known_answers: $(ARM_OBJECTS)
	$(ARM_CXX) -Wl,--gc-sections -o $@ $^ -lpthread -ldl

$(ARM)/%.o: src/autorep/_native/cpp/%.cpp $(wildcard src/autorep/_native/cpp/*) | setup-dev
	@mkdir -p $(ARM)
	$(ARM_CXX) $(ARM_FLAGS) -c -o $@ $<

$(ARM)/%.o: tests/native/%.cpp $(wildcard src/autorep/_native/cpp/*) | setup-dev
	@mkdir -p $(ARM)
	$(ARM_CXX) $(ARM_FLAGS) -c -o $@ $<

$(ARM)/aes_neon.o: ARM_FLAGS += -march=armv8-a+crypto
ARM_FLAGS = -std=c++17 -O2 -Wall -Wextra -Wno-psabi -ffunction-sections -fdata-sections -fvisibility=hidden \
    -Isrc/autorep/_native/cpp -isystem $(shell $(BIN)/python -m nanobind --include_dir) \
    -isystem $(shell $(BIN)/python -c "import sysconfig; print(sysconfig.get_paths()['include'])")

clean:  ## remove everything that was built or written
	rm -rf $(VENV) build dist demo-output report .pytest_cache .mypy_cache .ruff_cache .hypothesis
