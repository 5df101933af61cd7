# `make test` and `make demo` work on a machine that has git, make and Python >= 3.10; the rest they fetch themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: test lint check demo wheel-test clean

test: lint check wheel-test

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

check: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal --ignore tests/gpu --ignore tests/packaging

# The wheel, installed into environments of its own: one with PyTorch, one without.
wheel-test: $(READY)
	$(BIN)/pytest tests/packaging

demo: $(READY)
	$(BIN)/python demo_notebooks/run.py

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --group dev --editable .
	touch $@

clean:
	rm -rf $(VENV) .envs dist
