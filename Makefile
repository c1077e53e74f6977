# Set-up, demo, checks, tests and benchmarks. Everything lives in .venv; nothing else is touched.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check bench docs clean

demo: $(READY)
	@mkdir -p runs
	$(BIN)/tracekit report samples/decode_host_sync.json.gz
	$(BIN)/tracekit report samples/decode_host_sync.json.gz --force -o runs/demo.html
	@echo "Open runs/demo.html in a browser, or read the report above."

test: $(READY)
	$(BIN)/python -m pytest -n 2

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	@# All run, whatever one of them says.
	@status=0; for bench in kineto rocpd ordering virtual marks engine planner; do \
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
	@touch $(READY)
