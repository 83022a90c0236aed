# Everything from a bare clone: each target makes its own virtual environment with pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One thread per process in tests: two worker processes share the machine better than two threads each.
TEST_ENV := OMP_NUM_THREADS=1 MPLBACKEND=agg
WORKERS ?= 2
SAMPLE := src/headcount/samples/addition
SAMPLE_SEED := 1

.PHONY: lab test check bench sample format clean

lab: $(READY)                ## train, verify and draw on the defaults
	$(BIN)/headcount lab

test: $(READY)               ## everything that can be tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(TEST_ENV) $(BIN)/pytest -n $(WORKERS) --dist worksteal

check: $(READY)              ## style, types and the fast tests: under a minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(TEST_ENV) $(BIN)/pytest -n $(WORKERS) -m "not slow" -q

bench: $(READY)              ## ratios, measured side by side
	$(BIN)/python -m benchmarks

sample: $(READY)             ## make the packaged sample again
	rm -rf build/sample
	$(BIN)/headcount train addition --seed $(SAMPLE_SEED) -o build/sample
	$(BIN)/headcount verify build/sample
	rm -rf $(SAMPLE) && mkdir -p $(SAMPLE)/results
	cp build/sample/*.json build/sample/log.jsonl build/sample/model.safetensors $(SAMPLE)
	cp build/sample/results/certificate.json $(SAMPLE)/results

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch first and pinned, so that no resolver picks another build.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("headcount needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e ".[dev,tensorboard]"
	touch $@

clean:
	rm -rf $(VENV)
