# One command each: make run · make test · make lint · make bench.  Variables: PYTHON, VENV, TORCH=cuda, PROMPT.

VENV   ?= .venv
PROMPT ?= The three primary colours are
# The first Python here that is new enough; constraints.txt is tested with 3.11.
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,$(shell \
            $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(p))))

BIN  := $(VENV)/bin
INST := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install pull run test lint bench

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /make \1|/p' $(MAKEFILE_LIST) | column -t -s '|'

# Made anew only when what is installed may have changed. An editable install needs nothing for changed code.
$(INST): pyproject.toml requirements.txt constraints.txt $(wildcard plugins/*/pyproject.toml examples/*/pyproject.toml)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	    test -n "$(PYTHON)" || { echo "no Python 3.11 or newer here: make PYTHON=/path/to/python3.11" >&2; exit 1; }; \
	    echo "making $(VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python scripts/check_torch.py constraints.txt $(TORCH)
	@echo "installing the workspace: minutes the first time"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r requirements.txt
	@touch $@

install: $(INST) ## the workspace in .venv, editable, with the versions of constraints.txt

pull: $(INST) ## SmolLM2-135M-Instruct into the cache folder, if it is not there
	@$(BIN)/byref pull smollm2

run: pull ## complete a prompt with SmolLM2
	@$(BIN)/byref generate --model smollm2 --max-tokens 64 "$(PROMPT)"

test: pull ## every test
	$(BIN)/python -m pytest -q

lint: $(INST) ## ruff, mypy --strict, the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: pull ## overhead of hooks, the floor, other engines
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/floor.py
	$(BIN)/python benchmarks/peers.py
