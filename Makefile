# Penstock: set up, serve, test, measure. Options go through ARGS: make serve ARGS="--port 8080".

PYTHON ?= python3
# Pinned here so that a machine without a GPU pulls no CUDA build; pyproject declares the range.
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Tests run in so many processes. A file's tests share one, as they share what is made for them.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
NATIVE := $(shell find csrc CMakeLists.txt -type f 2>/dev/null)
# An editable install knows its packages by name: a further one must be installed to be found.
PACKAGES := $(shell find python kernels -name __init__.py)

.PHONY: serve run setup test test-fast lint format bench wheel clean help

help:  ## What can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

serve: $(VENV)/.runtime  ## Serve the default model on 0.0.0.0:1234
	$(BIN)/penstock serve $(ARGS)

run: $(VENV)/.runtime  ## Chat in the terminal
	$(BIN)/penstock run $(ARGS)

setup: $(VENV)/.dev  ## Everything that development needs, into .venv

# What a server needs: no torch, no test tools, kernels for this processor only. The pip that Debian
# 12 and Ubuntu 22.04 bring is too old to pass options on to a build. Compiled here, since many
# containers forbid Python to write bytecode, and each start would compile all sources again.
$(VENV)/.runtime: pyproject.toml $(NATIVE) $(PACKAGES)
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check 'pip>=23.1'
	$(BIN)/pip install -q --disable-pip-version-check -e . -C cmake.define.PENSTOCK_ISAS=host
	$(BIN)/python -m compileall -q python kernels
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(BIN)/pip install -q --disable-pip-version-check $(TORCH)
	$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]' \
		-C cmake.define.PENSTOCK_ISAS=all -C cmake.define.PENSTOCK_EMULATED=ON \
		-C cmake.define.PENSTOCK_TESTS=ON -C cmake.define.PENSTOCK_WERROR=ON
	@touch $@

# What compiles the kernels of a distribution: those two, and no tools of development.
$(VENV)/.compilers: $(VENV)/.runtime
	$(BIN)/pip install -q --disable-pip-version-check $(TORCH)
	$(BIN)/pip install -q --disable-pip-version-check 'triton>=3.6'
	@touch $@

test: $(VENV)/.dev lint  ## Everything that .ci/run runs
	$(BIN)/ctest --test-dir $$(dirname build/*/CTestTestfile.cmake | tail -n 1) --output-on-failure
	$(PYTEST) $(ARGS)

test-fast: $(VENV)/.dev  ## Without the slow suites
	$(PYTEST) -m "not slow" $(ARGS)

lint: $(VENV)/.dev  ## Linters, formatters in check mode, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $$(find csrc -name "*.h" -o -name "*.cc" -o -name "*.cu" -o -name "*.cuh")
	$(BIN)/mypy

format: $(VENV)/.dev  ## Format all sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(find csrc -name "*.h" -o -name "*.cc" -o -name "*.cu" -o -name "*.cuh")

bench: $(VENV)/.dev  ## Measure; beside the peers: ARGS="server --peers FOLDER" (bench/peers.md)
	$(BIN)/python -m bench $(ARGS)

wheel: $(if $(CUDA),$(VENV)/.compilers)  ## Build a wheel into dist/; with CUDA=13 that of the CUDA library
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(if $(CUDA),$(BIN)/python -m penstock.kernels.triton.compile.package build/kernels)
	$(BIN)/pip wheel -q --disable-pip-version-check --no-deps -w dist $(if $(CUDA),packaging/cuda$(CUDA) \
		-C cmake.define.PENSTOCK_KERNELS=$(CURDIR)/build/kernels,.)

clean:  ## Remove builds and the virtual environment
	rm -rf build dist $(VENV)
