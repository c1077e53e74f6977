# Set-up, demo, checks, tests and benchmarks. Everything lives in .venv; nothing else is touched.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow check bench docs clean

# A server on the virtual device whose scheduler waits on the host, and one whose does not.
demo: $(READY)
	@mkdir -p runs
	$(BIN)/tracekit capture --force --load samples/loads/one_at_a_time.toml -o runs/old -- $(BIN)/python -m instrumented_runtime.server --port 0 --policy host-sync
	$(BIN)/tracekit capture --force --load samples/loads/one_at_a_time.toml -o runs/new -- $(BIN)/python -m instrumented_runtime.server --port 0 --policy forward-stream
	$(BIN)/tracekit report runs/old --only idle-gaps --only host-syncs
	$(BIN)/tracekit report runs/new --only idle-gaps --only host-syncs
	$(BIN)/tracekit report runs/old --force -o runs/old.html
	$(BIN)/tracekit report runs/new --force -o runs/new.html
	$(BIN)/tracekit compare --base runs/old --head runs/new
	@echo "Open runs/old.html and runs/new.html in a browser, or read the reports above."

test: $(READY)
	$(BIN)/python -m pytest -n 3 --dist worksteal

# Tests that take too long for every change.
test-slow: $(READY)
	$(BIN)/python -m pytest -n 2 -m slow

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	@# All run, whatever one of them says.
	@status=0; for bench in kineto rocpd ordering virtual marks hooks engine planner verdicts; do \
		echo "bench/$$bench.py"; $(BIN)/python bench/$$bench.py || status=1; \
	done; exit $$status

docs: $(READY)
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) .bench runs

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("tracekit needs Python 3.11 or newer; choose one with: make PYTHON=python3.12 …" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@# Of a server that others wrote only its own modules, for the tests of hooks and patches.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(VENV)/foreign sglang==0.5.23
	@touch $(READY)
