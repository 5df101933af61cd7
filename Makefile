# `make test` and `make demo` work on a machine that has git, make and Python >= 3.10; the rest they fetch themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OLD := .envs/ipykernel6/.ready
SUDO := $(shell test "$$(id -u)" = 0 || echo sudo)

.PHONY: test lint bundle front-end check old-kernel browser chromium demo wheel-test clean

test: lint front-end check old-kernel browser wheel-test

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The panel's JavaScript: made if its sources have changed, its types checked, its pure parts tested.
bundle: $(READY)
	$(BIN)/python hatch_build.py

front-end: $(READY)
	$(BIN)/python hatch_build.py check test

check: bundle
	$(BIN)/pytest -n 2 --dist worksteal --ignore tests/gpu --ignore tests/packaging --ignore tests/browser

# The live panel on the last ipykernel 6 too, which hosted notebooks still have.
old-kernel: bundle $(OLD)
	.envs/ipykernel6/bin/python -m pytest -n 2 tests/kernel/test_kernel_panel.py \
	  tests/kernel/test_kernel_cells.py tests/kernel/test_kernel_around_cells.py

$(OLD): $(READY)
	$(PYTHON) -m venv .envs/ipykernel6
	.envs/ipykernel6/bin/python -m pip install --quiet "ipykernel==6.31.*"
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
	  > "$$(.envs/ipykernel6/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/development.pth"
	touch $@

# Real browsers. Screenshots are kept in artifacts/browser.
browser: bundle chromium
	$(BIN)/pytest -n 2 tests/browser

chromium:
	@command -v chromium > /dev/null || command -v chromium-browser > /dev/null || ! command -v apt-get > /dev/null || \
	  ($(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core > /dev/null)

# The wheel, installed into environments of its own: one with PyTorch, one without.
wheel-test: bundle
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
