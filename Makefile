# The commands for people and CI. .venv holds all Python packages and nsys; only the tests' Debian packages go elsewhere
# (tests/install-packages.sh, which prints their names).
PYTHON ?= python3
BIN := .venv/bin
DEMO := .venv/.demo
STAMP := .venv/.installed
TOOLS := .venv/.test-tools
NSIGHT := .venv/.nsight
PACKAGES := .venv/.packages
THOROUGH := .venv/.thorough
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# uv does not read pip's settings: where pip finds the CPU build of torch is passed on.
UV := UV_FIND_LINKS="$$($(BIN)/python -m pip config list | sed -n "s/.*\.find-links='\(.*\)'/\1/p" | head -n 1)" \
  $(BIN)/uv pip install --quiet --python $(BIN)/python
# The tests start some thousand Pythons: each would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo pictures test tests lint test-fast test-all test-thorough test-times coverage versions sanitize faults check bench bench-check exam answers docs clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       four ranks train under rankscope profile, one of them slow: who, and why; under a minute"
	@echo "make pictures   the pictures of README.md and docs, of runs in tests/data"
	@echo "make test       ruff, mypy, import-linter, tsc and the tests (what CI runs)"
	@echo "make test-fast  the quick tests, in about a minute"
	@echo "make test-all   make test, the tests marked thorough, and make exam"
	@echo "make faults     kill, flood, damage and attack it some 1,300 times (docs/reliability.md)"
	@echo "make coverage   the branch coverage of the quick tests"
	@echo "make versions   the quick tests with the oldest and the newest Python, duckdb and numpy"
	@echo "make sanitize   the tests of the C parts, with AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make check      ruff, mypy --strict, import-linter; a user script under mypy and pyright; tsc"
	@echo "make bench      rankscope against its peers, as ratios of one run"
	@echo "make bench-check  the small ones: a warning where reading needs 10 % more CPU than in benchmarks/last.json"
	@echo "make exam       plant faults in jobs and score the findings (docs/accuracy.md), and the assistant; under 25 minutes"
	@echo "make answers    write tests/answers: what is said about the recorded and some simulated runs"
	@echo "make docs       regenerate commands, tables, import graph, notebook and printed outputs in docs; build site/"

# Only what the demo needs. What the tests need as well comes with make test.
$(DEMO): pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) --editable . torch==2.13.0
	@touch $@

# uv takes a third of pip's CPU time, on all cores. Where it fails, as without PyPI, pip does it.
$(STAMP): pyproject.toml bench/pyproject.toml tests/requirements-torch.txt
	$(PYTHON) -m venv .venv
	$(PIP) uv && $(UV) --editable '.[dev]' --editable ./bench --requirement tests/requirements-torch.txt || \
	  $(PIP) --editable '.[dev]' --editable ./bench --requirement tests/requirements-torch.txt
	@touch $@

# Collecting once leaves the bytecode of tests and packages, which each of pytest's processes would compile.
$(TOOLS): $(STAMP) $(NSIGHT) $(PACKAGES)
	-$(PYTEST) -n 0 -q --collect-only >/dev/null
	@touch $@

$(PACKAGES): tests/install-packages.sh
	mkdir -p .venv
	tests/install-packages.sh
	@touch $@

$(THOROUGH): $(TOOLS) tests/requirements-thorough.txt
	$(PIP) --requirement tests/requirements-thorough.txt
	tests/integration/install-nsight.sh .venv/nsight ncu
	@touch $@

$(NSIGHT): tests/integration/install-nsight.sh
	mkdir -p .venv
	tests/integration/install-nsight.sh .venv/nsight nsys
	@touch $@

demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO))
	@PATH="$(CURDIR)/$(BIN):$$PATH" ./examples/demo.sh

pictures: $(TOOLS)
	$(BIN)/python docs/pictures.py

# At once: what is installed, then lint, which uses one core, beside the tests, which wait for jobs, browsers and disks:
# three of them fill two cores.
test:
	$(MAKE) --jobs 3 lint tests

# At most three tests that fail beside others are tried again alone: what only needed a quiet machine passes then.
tests: $(TOOLS)
	$(PYTEST) -n 3 --cache-clear -m "not thorough" || \
	  { test $$? -eq 1 && $(PYTEST) -n 0 --last-failed --last-failed-no-failures none --retried-at-most 3; }

test-fast: $(STAMP)
	$(PYTEST) -q -m "not slow"

lint: $(STAMP) $(PACKAGES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python benchmarks/code_figures.py --check
	tests/viewer/check-js.sh

check: lint
	tests/typing/check.sh

# Branch coverage of the quick tests: measuring it takes minutes. The floor is in pyproject.toml.
coverage: $(TOOLS)
	RANKSCOPE_TEST_EXAMPLES=100 $(PYTEST) -m "not slow" --cov --cov-report=term:skip-covered

# Also the tests marked thorough and the exam: before a release, and after a change of what they vary.
test-all: check coverage test-thorough exam

# SHARD=2/4: every fourth file, from the second on; the shards of CI together are make test-all.
test-thorough: $(THOROUGH)
	RANKSCOPE_TEST_EXAMPLES=100 $(PYTEST) -n 3 -m slow $(if $(SHARD),--shard $(SHARD))

versions:
	tests/versions.sh oldest
	tests/versions.sh newest

sanitize: $(STAMP)
	tests/sanitize.sh

faults: $(TOOLS)
	$(BIN)/python tests/faults/run.py

# What takes over a third of a second and is not marked slow. A slow setup makes its whole file slow: pytestmark.
test-times: $(TOOLS)
	$(PYTEST) -m "not slow" --durations=0 --durations-min=0.33

# Needs a quiet machine: every figure of benchmarks/last.json and docs/performance.md is measured anew.
bench: $(STAMP)
	$(BIN)/python benchmarks/bench.py --install-peers --write
	$(BIN)/python benchmarks/bench.py --scaling --write
	$(BIN)/python benchmarks/all_reports.py
	$(BIN)/python benchmarks/all_reports.py --scaling
	$(BIN)/python benchmarks/capture.py
	$(BIN)/python benchmarks/trace_decorator.py
	$(BIN)/python benchmarks/report.py

bench-check: $(STAMP)
	$(BIN)/python benchmarks/bench.py --check

# Faults planted in 270 simulated and 34 real jobs; fails below the floor.
exam: $(STAMP)
	$(BIN)/python -m rankscope_bench.exam.agents
	$(BIN)/rankscope bench exam

# What a change did to the answers is in its diff.
answers: $(STAMP)
	$(BIN)/python benchmarks/answers.py --write

docs: $(STAMP)
	$(BIN)/python docs/generate.py
	$(BIN)/zensical build --clean --strict --config-file mkdocs.yml

clean:
	rm -rf .venv demo .bench site
