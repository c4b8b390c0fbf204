# One door for people and CI. Everything lives in .venv; nothing is installed elsewhere.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test check unit bench docs clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   the main job: two ranks train under rankscope profile, then tables and report.html"
	@echo "make test   every check and every test (what CI runs)"
	@echo "make check  ruff, mypy --strict, import-linter; a user's script under mypy and pyright; the viewer's JavaScript"
	@echo "make bench  ours against the peers, as ratios of one run"
	@echo "make docs   regenerate docs/commands and docs/store.md from the code"

$(STAMP): pyproject.toml tests/requirements-torch.txt tests/integration/install-launchers.sh tests/integration/install-nsight.sh \
		tests/browser/install-chromium.sh tests/integration/install-remote.sh
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement tests/requirements-torch.txt
	tests/integration/install-launchers.sh
	tests/integration/install-remote.sh
	tests/integration/install-nsight.sh .venv/nsight
	tests/browser/install-chromium.sh
	@touch $@

demo: $(STAMP)
	@PATH="$(CURDIR)/$(BIN):$$PATH" ./examples/demo.sh

test: check unit

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	tests/typing/check.sh
	tests/viewer/check-js.sh

unit: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile

bench: $(STAMP)
	$(BIN)/python benchmarks/ingest.py
	$(BIN)/python benchmarks/ingest.py --scaling
	$(BIN)/python benchmarks/analysis.py
	$(BIN)/python benchmarks/analysis.py --scaling
	$(BIN)/python benchmarks/analysis.py --hta
	$(BIN)/python benchmarks/nsys.py
	$(BIN)/python benchmarks/capture.py
	$(BIN)/python benchmarks/trace_decorator.py
	$(BIN)/python benchmarks/report.py

docs: $(STAMP)
	$(BIN)/python docs/generate.py

clean:
	rm -rf .venv demo .bench
