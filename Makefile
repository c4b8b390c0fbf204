# One door for people and CI. Everything lives in .venv; nothing is installed elsewhere.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test check unit bench docs clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   the main job: two ranks train under rankscope profile, then tables"
	@echo "make test   every check and every test (what CI runs)"
	@echo "make check  ruff, mypy --strict, import-linter"
	@echo "make bench  ours against the peers, as ratios of one run"
	@echo "make docs   regenerate docs/commands and docs/store.md from the code"

$(STAMP): pyproject.toml tests/requirements-torch.txt tests/integration/install-launchers.sh
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement tests/requirements-torch.txt
	tests/integration/install-launchers.sh
	@touch $@

demo: $(STAMP)
	@PATH="$(CURDIR)/$(BIN):$$PATH" ./examples/demo.sh

test: check unit

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(STAMP)
	$(BIN)/python -m pytest

bench: $(STAMP)
	$(BIN)/python benchmarks/ingest.py
	$(BIN)/python benchmarks/ingest.py --scaling
	$(BIN)/python benchmarks/capture.py
	$(BIN)/python benchmarks/trace_decorator.py

docs: $(STAMP)
	$(BIN)/python docs/generate.py

clean:
	rm -rf .venv demo .bench
