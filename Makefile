# Penstock: set up, serve, test, measure. Options go through ARGS: make serve ARGS="--port 8080".

PYTHON ?= python3
# Pinned here so that a machine without a GPU pulls no CUDA build; pyproject declares the range.
TORCH ?= torch==2.13.0
# Packages whose packing code the tests run. What they depend on is large and not needed for that.
PACKINGS := auto-round==0.16.1 amd-quark==0.13 autoawq==0.2.9
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Number of test processes. Tests of one file share a process and their fixtures.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
NATIVE := $(shell find csrc CMakeLists.txt -type f 2>/dev/null)
# An editable install lists its packages: a new package needs a new install.
PACKAGES := $(shell find python kernels -name __init__.py)

# Sources of the web page.
PAGE := $(shell find python/penstock/api/ui/web -name node_modules -prune -o -type f -print 2>/dev/null)
BUILD_PAGE := packaging/build_page.py

# Web search and MCP need the libraries of the extra `agent`.
TOOLS := $(if $(filter --agent --agentic --enable-search --mcp%,$(ARGS)),$(VENV)/.agent)

.DELETE_ON_ERROR:
.PHONY: serve run setup ui test test-native test-slow test-fast lint lint-sources lint-page check-page types format \
	bench wheel clean help

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

# Packages of the page arrive while the kernels compile.
serve:  ## Serve the default model on 0.0.0.0:1234, with its web page at /ui
	@$(MAKE) --no-print-directory -j2 $(VENV)/.runtime $(TOOLS) $(VENV)/.page
	$(BIN)/penstock serve $(ARGS)

run: $(VENV)/.runtime $(TOOLS)  ## Chat in the terminal
	$(BIN)/penstock run $(ARGS)

setup: $(VENV)/.dev  ## Install development tools into .venv

ui: | $(BIN)/pip  ## Build the web page, which `make serve` does too
	$(BIN)/python $(BUILD_PAGE) --required

# The server alone: no torch, no test tools, kernels for this processor only. Bytecode is compiled
# here because many containers forbid Python to write it, and every start would compile all sources
# again.
$(VENV)/.runtime: pyproject.toml $(NATIVE) $(PACKAGES) | $(BIN)/pip
	$(BIN)/pip install -q --disable-pip-version-check -e . -C cmake.define.PENSTOCK_ISAS=host
	$(BIN)/python -m compileall -q -x node_modules python kernels
	@touch $@

# pip of Debian 12 and Ubuntu 22.04 is too old to pass options to a build.
$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check 'pip>=23.1'

# Without Node the server has no page and says so. The next `make serve` does not try again, `make ui`
# does.
$(VENV)/.page: $(PAGE) $(BUILD_PAGE) | $(BIN)/pip
	@$(BIN)/python $(BUILD_PAGE)
	@touch $@

# Penstock is installed, so pip adds the libraries of the extra and builds nothing.
$(VENV)/.agent: $(VENV)/.runtime
	$(BIN)/pip install -q --disable-pip-version-check 'penstock[agent]'
	@touch $@

# Does not need .runtime, whose build for this processor alone would be thrown away.
$(VENV)/.dev: pyproject.toml $(NATIVE) $(PACKAGES) | $(BIN)/pip
	$(BIN)/pip install -q --disable-pip-version-check $(TORCH)
	$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]' \
		-C cmake.define.PENSTOCK_ISAS=all -C cmake.define.PENSTOCK_EMULATED=ON \
		-C cmake.define.PENSTOCK_TESTS=ON -C cmake.define.PENSTOCK_WERROR=ON
	$(BIN)/pip install -q --disable-pip-version-check --no-deps $(PACKINGS)
	@touch $(VENV)/.runtime $@

# The compilers of the packaged GPU kernels, without development tools.
$(VENV)/.compilers: $(VENV)/.runtime
	$(BIN)/pip install -q --disable-pip-version-check $(TORCH)
	$(BIN)/pip install -q --disable-pip-version-check 'triton>=3.6'
	@touch $@

# Most checks use one core, so two run at a time, and those of the page run while the kernels compile.
test:  ## Run linters, types, page and C++ tests, and the Python tests that are not slow
	@$(MAKE) --no-print-directory -j2 --output-sync=target $(VENV)/.dev check-page lint test-native
	$(PYTEST) -m "not slow" $(ARGS)

test-native: $(VENV)/.dev
	$(BIN)/ctest --test-dir $$(dirname build/*/CTestTestfile.cmake | tail -n 1) --output-on-failure

test-slow: $(VENV)/.dev  ## Run the slow Python tests, such as those in a browser
	$(BIN)/python $(BUILD_PAGE) --required
	$(PYTEST) -m slow $(ARGS)

test-fast: $(VENV)/.dev  ## Run the Python tests that are not slow
	$(PYTEST) -m "not slow" $(ARGS)

lint: types lint-page lint-sources  ## Run linters, formatters in check mode and type checks

lint-sources: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $$(find csrc -name "*.h" -o -name "*.cc" -o -name "*.cu" -o -name "*.cuh")

lint-page: | $(BIN)/pip
	$(BIN)/python $(BUILD_PAGE) npm run --silent lint
	$(BIN)/python $(BUILD_PAGE) npm run --silent check

check-page: lint-page | $(BIN)/pip
	$(BIN)/python $(BUILD_PAGE) npm test --silent
	$(BIN)/python $(BUILD_PAGE) --required

# mypy needs a package in one folder; the sources are in two, python/penstock and kernels.
types: $(VENV)/.dev  ## Check types with mypy
	rm -rf build/mypy
	mkdir -p build/mypy/penstock
	ln -s "$(CURDIR)"/python/penstock/* build/mypy/penstock/
	ln -sfn "$(CURDIR)/kernels" build/mypy/penstock/kernels
	$(BIN)/mypy

format: $(VENV)/.dev  ## Format all sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python $(BUILD_PAGE) npm run --silent format
	$(BIN)/clang-format -i $$(find csrc -name "*.h" -o -name "*.cc" -o -name "*.cu" -o -name "*.cuh")

bench: $(VENV)/.dev  ## Measure; beside other engines: ARGS="server --peers FOLDER" (bench/peers.md)
	$(BIN)/python -m bench $(ARGS)

wheel: $(if $(CUDA),$(VENV)/.compilers) | $(BIN)/pip  ## Build a wheel into dist/; CUDA=13 builds the CUDA library's
	$(if $(CUDA),$(BIN)/python -m penstock.kernels.triton.compile.package build/kernels)
	$(BIN)/pip wheel -q --disable-pip-version-check --no-deps -w dist $(if $(CUDA),packaging/cuda$(CUDA) \
		-C cmake.define.PENSTOCK_KERNELS=$(CURDIR)/build/kernels,.)

clean:  ## Remove builds and the virtual environment
	rm -rf build dist $(VENV) python/penstock/api/ui/dist python/penstock/api/ui/web/node_modules
