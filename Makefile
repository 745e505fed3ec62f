# Attention, Cycle by Cycle. `make` lists what there is to do.
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?=
LAB_FLAGS := $(if $(filter 0,$(shell id -u)),--allow-root)

.DEFAULT_GOAL := help
.PHONY: help venv book lab test fmt clean

help:  ## list the targets
	@echo "Attention, Cycle by Cycle"
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-6s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

book: $(VENV)/.book  ## run every chapter on this machine and build the pages; prints where to open them
	@$(PY) -m attnbook.book build

lab: $(VENV)/.book  ## open the chapters in JupyterLab, to change cells and kernels and run them again
	@$(PY) -m jupyterlab $(LAB_FLAGS) --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/book

test: $(VENV)/.dev  ## everything that CI checks (ARGS="..." is handed to pytest)
	@$(PY) tools/check.py $(ARGS)

fmt: $(VENV)/.dev  ## put code and notebooks into their canonical form
	@$(PY) -m ruff check --fix --quiet . || true
	@$(PY) -m attnbook.book canon --fix
	@$(PY) -m ruff format .

venv: $(VENV)/.book  ## make the Python environment in .venv and nothing else

clean:  ## remove everything built (the environment in .venv stays)
	rm -rf _build .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name .venv -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# An environment stands for one checkout: in a moved or copied folder it is mended.
ifneq ($(shell cat $(VENV)/.checkout 2>/dev/null),$(CURDIR))
.PHONY: $(VENV)/.book $(VENV)/.dev
endif

$(VENV)/.book: requirements.txt constraints.txt pyproject.toml
	@tools/environment.sh requirements.txt $(VENV) $(PYTHON)
	@echo "$(CURDIR)" > $(VENV)/.checkout
	@touch $@

$(VENV)/.dev: requirements.txt requirements-dev.txt requirements-peers.txt constraints.txt pyproject.toml
	@tools/environment.sh requirements-peers.txt $(VENV) $(PYTHON)
	@echo "$(CURDIR)" > $(VENV)/.checkout
	@touch $(VENV)/.book $@
