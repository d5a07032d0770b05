# Everything runs in .venv, made on first use; versions are those of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One process more than cores: much of the tests' time is waiting for slots to start. The longest
# come first, as tests/conftest.py sorts them.
TESTS := $(BIN)/pytest -n 3 --dist loadgroup --no-loadscope-reorder
# Tests start many processes: none of them compiles the package's sources again.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test quick slow all nightly slurm faults soak soak-all lint house mutants bench gpu papers docs pictures fuzz audit package clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[examples]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev,ray]'
	@touch $@ $(VENV)/.base

$(VENV)/.docs: $(VENV)/.dev
	$(PIP) -e '.[docs]'
	@touch $@

demo: $(VENV)/.base  ## install, and train a grid of 16 models on real data
	@rm -rf runs/demo
	$(BIN)/shoal run examples/digits.py --storage runs/demo

test: lint quick  ## what must hold before every commit

quick: $(VENV)/.dev
	$(TESTS)

slow: $(VENV)/.dev  ## what takes longer than seconds: processes that are killed, Ray, real Slurm
	$(TESTS) -m "(slow or slurm) and not soak and not nightly" -rs

all: $(VENV)/.dev  ## quick and slow ones in one call, the longest first: what CI runs
	$(TESTS) -m "not soak and not nightly" -rs --durations 20

nightly: $(VENV)/.dev  ## products, old formats and whole papers: before a release (docs/reliability.md)
	$(TESTS) -m "nightly and not soak" -rs

slurm: $(VENV)/.dev  ## with a real Slurm of virtual nodes on this machine; skipped where it is not installed
	$(BIN)/pytest -m slurm -rs

faults: $(VENV)/.dev  ## what is broken on purpose: processes, files, networks; quick and slow ones, not the soak
	$(TESTS) -m "faults and not soak and not nightly" -rs

soak: $(VENV)/.dev  ## 20 minutes, or SOAK_MINUTES, of random kills and damage over all kinds of studies
	$(BIN)/pytest -s -m soak --timeout 14400 tests/faults/test_soak.py

soak-all: $(VENV)/.dev  ## hours of killing and churn
	$(BIN)/pytest -m soak --timeout 14400

fuzz: $(VENV)/.dev  ## damaged and forged files for each reader and command, 10000 each (FUZZ=N for others)
	$(BIN)/pytest -m soak tests/locks/test_fuzz.py tests/locks/test_fuzz_commands.py tests/ui/test_odd_requests.py

audit: $(VENV)/.dev  ## known holes and licences of what Shoal needs; says so where no service can be reached
	$(BIN)/python tools/audit.py

package: $(VENV)/.dev  ## build dist/, install it outside of the checkout, without extras and with each, and use it there
	$(BIN)/python tools/check_package.py

lint: $(VENV)/.dev
	$(BIN)/ruff check shoal tests benchmarks examples papers tools
	$(BIN)/ruff format --check shoal tests benchmarks examples papers tools
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/house.py
	$(BIN)/python tools/architecture.py --check

house: $(VENV)/.base  ## the seams of the package: what a reader pays for; and three rules
	$(BIN)/python tools/house.py --places 8

mutants: $(VENV)/.dev  ## faults put into the papers' rules: tests must notice each one; two minutes on two cores
	$(BIN)/python tools/mutants.py

bench: $(VENV)/.dev  ## side by side with peers; tables, and benchmarks/results/*.json
	for file in sim elastic replay hop plan packing hyperband hybrid search_on_hop model_selection tune_grid shared_stream feed feed_nodes rescale rescaled arrivals flotilla rungs choice choice_on_ray scale many step harvest page; do $(BIN)/python benchmarks/$$file.py || exit 1; done

gpu:  ## what needs a GPU, nine minutes of it; again until nothing is left; with a Python that has torch (docs/gpu.md)
	PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) benchmarks/gpu.py $(GPU)

papers: $(VENV)/.dev  ## the five papers' experiments, with their goals; needs the shared data for one of them
	for name in cerebro capes fleet pack bftrainer; do $(BIN)/python papers/$$name/run.py || exit 1; done

docs: $(VENV)/.docs  ## the site, in site/; fails when a page has other figures than the results, or is broken
	$(BIN)/python tools/figures.py
	$(BIN)/zensical build --config-file mkdocs.yml --clean --strict
	$(BIN)/python tools/check_site.py

pictures: $(VENV)/.dev  ## of README and the site, from real runs; needs Chromium. Look at them
	$(BIN)/python tools/pictures.py

clean:
	rm -rf $(VENV) build dist site *.egg-info
