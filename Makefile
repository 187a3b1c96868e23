# Everything that a developer or an operator runs. `make help` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench
FUZZ_STAMP := $(VENV)/.installed-fuzz
MUTATION_STAMP := $(VENV)/.installed-mutation
TARGET ?= frame

.PHONY: help install run demo test test-durability test-extended test-slow lint format bench bench-quick docs build clean \
	canaries crash-images fuzz mutants power-cut recording soak test-tools torture

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

install: $(STAMP) ## make .venv with the reput command; install a JDK if it is missing and you have the rights

$(STAMP): pyproject.toml constraints.txt deploy/install-jdk.sh
	sh deploy/install-jdk.sh
	$(PYTHON) -m venv $(VENV)
	@echo "installing reput's packages, Spark among them; this takes a few minutes"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	-$(BIN)/reput prepare
	touch $(STAMP)
	@echo "installed: $(BIN)/reput --help lists the commands"

run: install ## run the demo: dispatch a live log, serve it, and check every message
	$(BIN)/reput demo

test-tools: install # a JDK with Maven, Prometheus and user-mode Linux; each says why where it cannot be
	sh deploy/install-jdk.sh maven
	sh deploy/install-prometheus.sh
	sh deploy/install-uml.sh

# hundreds of commands start: none compiles all of reput again, also where images forbid bytecode
TESTS := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test: test-tools ## run the tests, in four processes for two cores
	$(TESTS) -m "not slow and not extended" --durations=10

test-extended: test-tools ## run the longer ones that CI runs, too: those that no canary has needed
	$(TESTS) -m "extended and not slow" --durations=10

test-durability: install ## run the few tests that notice within seconds that a sync is missing
	$(BIN)/python -m pytest -q tests/store/test_fsops.py tests/crash/test_power_loss.py \
		-k "test_fsops or second_run"

test-slow: test-tools ## run exhaustive tests for two hours: hundreds of kill -9 rounds, 40,000 mutated logs
	$(BIN)/python -m pytest -m slow --timeout=7200

power-cut: install ## cut the power N times (1000) on a real kernel in a process, ext4 and XFS; SEED=n FIRST=k go on
	sh deploy/install-uml.sh
	$(BIN)/python -m tests.torture power-cut $(if $(N),--count $(N)) $(if $(SEED),--seed $(SEED)) \
		$(if $(FIRST),--first $(FIRST))

fuzz: $(FUZZ_STAMP) ## fuzz TARGET (frame), guided by coverage, for SECONDS (3600)
	$(BIN)/python -m tests.fuzz $(TARGET) --seconds $(or $(SECONDS),3600)

$(FUZZ_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	touch $(FUZZ_STAMP)

torture: install ## try faults by the hundred thousand; KIND=log-rot N=1000 SEED=7 FIRST=0 for a part
	$(BIN)/python -m tests.torture $(KIND) $(if $(N),--count $(N)) $(if $(SEED),--seed $(SEED)) \
		$(if $(FIRST),--first $(FIRST))

soak: install ## follow a live log for SECONDS (7200) with a fault every ten; SEED=n DIRECTORY=... keeps its report
	$(BIN)/python -m tests.soak --seconds $(or $(SECONDS),7200) $(if $(SEED),--seed $(SEED)) \
		$(if $(DIRECTORY),--directory $(DIRECTORY))

canaries: install ## seed faults that tests must notice; N=20 of them, NAME=..., RESUME=1
	$(BIN)/python -m tests.canaries $(N) $(NAME) $(if $(RESUME),--resume)

mutants: $(MUTATION_STAMP) ## try N random faults (150); SEED=n RESUME=1 go on with an earlier run
	$(BIN)/python -m tests.canaries.mutants $(or $(N),150) $(if $(SEED),--seed $(SEED)) \
		$(if $(RESUME),--resume)

recording: test-tools $(MUTATION_STAMP) ## record which tests run which functions, for mutants; an hour, RESUME=1 goes on
	$(BIN)/python -m tests.canaries.recording $(if $(RESUME),--resume)

$(MUTATION_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mutation]'
	touch $(MUTATION_STAMP)

crash-images: install ## try N power cuts (1000000) in memory; SEED=n ROUND=k go on with an earlier run
	$(BIN)/python -m tests.torture crash-images --faults $(or $(N),1000000) \
		$(if $(SEED),--seed $(SEED)) $(if $(ROUND),--first $(ROUND))

lint: install ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install ## format with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(BENCH_STAMP) ## measure every figure beside RocketMQ's; 80 to 100 minutes, 40 GiB of disk while it runs
	sh deploy/install-jdk.sh maven
	$(BIN)/python -m bench --json docs/bench.json --plot docs/bench.svg
	$(BIN)/python -m docs.generate

bench-quick: $(BENCH_STAMP) ## measure the ratios to RocketMQ and to the parse limit on small logs; two minutes
	sh deploy/install-jdk.sh maven
	$(BIN)/python -m bench --quick

$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $(BENCH_STAMP)

docs: install ## write the generated tables into docs and README
	$(BIN)/python -m docs.generate

build: install ## build the wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean: ## remove all generated files except .venv
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache bench/data bench/harness/target
