# make run   set up on first use, run the quick study on this machine, say where the report is
# make test  the test suite (minutes); make test-all adds the slow tier that CI runs
# make lint  ruff, mypy, snakefmt, snakemake --lint, the layer arrows

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STUDY ?= quick

.DEFAULT_GOAL := help
.PHONY: help setup run test test-all lint format lock clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.ready ## create .venv with pinned dependencies and build DeepSpeed's CPU optimizer

$(VENV)/.ready: requirements.lock pyproject.toml scripts/setup.sh
	PYTHON="$(PYTHON)" VENV="$(VENV)" bash scripts/setup.sh
	@touch $@

run: setup ## run the quick study (STUDY=NAME for another) on this machine
	@$(BIN)/snakemake --profile local --config study=$(STUDY)
	@echo "The report: results/$(STUDY)/report.md"

test: setup ## the test suite without the slow tier
	@# Two at a time: most of them wait for processes that they started. A file's tests share what they build.
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not cluster and not gpu"

test-all: setup ## everything that runs without a GPU, control plane included
	$(BIN)/python -m pytest -m "not gpu"

lint: setup ## formatters, types, workflow lint, layers
	bash scripts/lint.sh

format: setup ## rewrite the code in its one format
	$(BIN)/ruff check --fix . && $(BIN)/ruff format . && $(BIN)/snakefmt Snakefile workflow/rules

lock: setup ## resolve pyproject.toml again into requirements.lock
	$(BIN)/uv pip compile --universal --python-version 3.11 --extra dev --no-emit-index-url --no-header pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate -c requirements.lock containers/requirements.in -o containers/requirements.lock

clean: ## remove the environment; results stay
	rm -rf $(VENV) .snakemake
