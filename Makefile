PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# tests and benchmarks look for the data sets here; whatever is absent is skipped with a message
export REGARD_DATA ?= $(abspath ../shared/data)

.PHONY: setup demo test browser storm check format bench pictures docs clean

setup: $(VENV)/.done
$(VENV)/.done: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: setup            ## trains a small translator, scores it, shows what it looks at
	$(BIN)/regard demo

test: setup check browser ## every test, in under five minutes on two cores
	$(BIN)/python -m pytest -n 2

browser:               # Chromium for the tests of the page, where it may be installed
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && { apt-get install -qq -y chromium || { apt-get update -qq && apt-get install -qq -y chromium; }; }; } >/dev/null 2>&1 || echo "no Chromium here: the page will not be tried in a browser"

storm: setup           ## the long fault, load and fuzz runs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[storm]"
	$(BIN)/python -m pytest -m storm --timeout 1800

check: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy regard

format: setup
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

# whether others were at work is asked once: the second race would find the load of the first
bench: export BENCH_LOAD := $(shell cut -d " " -f 1 /proc/loadavg 2>/dev/null)
bench: setup browser   ## side-by-side runs against the peers, on this CPU, in about a quarter of an hour
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	$(BIN)/python -m bench.train_translation && $(BIN)/python -m bench.recurrent && $(BIN)/python -m bench.tcn && $(BIN)/python -m bench.translate && $(BIN)/python -m bench.watch
	$(BIN)/python -m bench.fast && $(BIN)/python -m bench.growth
	$(BIN)/python -m bench.encode && $(BIN)/python -m bench.generate && $(BIN)/python -m bench.page && $(BIN)/python -m bench.serve && $(BIN)/python -m bench.goals

pictures: setup        ## pictures of the page in docs/pictures, from the demo's run
	test -f runs/demo/model.safetensors || $(BIN)/regard demo
	$(BIN)/python -m bench.pictures runs/demo

docs: setup            ## the documentation as a web site in site/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	$(BIN)/zensical build

clean:
	rm -rf $(VENV) site .mypy_cache .pytest_cache .ruff_cache
