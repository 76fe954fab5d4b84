# Each target makes the virtual environment it needs: only python3 and make have to be on the machine.
# The second time a target runs, its environment is already there and nothing is downloaded.
PYTHON ?= python3
VENV := .venv
BENCH_VENV := .venv-bench
AGENTS := .agents
# Tests start the command hundreds of times; without compiled files each start would compile two hundred modules.
unexport PYTHONDONTWRITEBYTECODE
PIP := -m pip --disable-pip-version-check --quiet

.PHONY: demo pictures test test-agents agents browser test-browser check bench bench-page crash fuzz soak format clean

demo: $(VENV)/run.stamp
	$(VENV)/bin/agentos demo

# The pictures of the README and of docs/report.md.
pictures: $(VENV)/browser.stamp
	$(VENV)/bin/python examples/live_picture.py
	$(VENV)/bin/python examples/show_picture.py
	$(VENV)/bin/python examples/report_picture.py

# In three processes: many tests wait for processes, signals or the clock, and two cores have room for that.
TEST_PROCESSES ?= 3
test: $(VENV)/dev.stamp
	$(VENV)/bin/python tests/redis_program.py
	$(VENV)/bin/python -m pytest -n $(TEST_PROCESSES) --dist worksteal $(PYTEST_ARGS)

# The real agent programs, against the simulator. They take 2.4 GB and need Node. Half of the time they wait for the end of
# a limit, or by themselves before they try again.
AGENT_TEST_PROCESSES ?= 5
test-agents: $(VENV)/dev.stamp $(AGENTS)/agents.stamp
	AGENTOS_AGENTS=$(abspath $(AGENTS)) $(VENV)/bin/python -m pytest -q -p no:randomly --timeout 600 \
		-n $(AGENT_TEST_PROCESSES) --dist worksteal tests/agents/real/*.py $(PYTEST_ARGS)

agents: $(AGENTS)/agents.stamp

# The page in a real browser, which needs Chromium: Debian's package, fetched as root if there is none.
browser: $(VENV)/browser.stamp
	$(VENV)/bin/python -m tests.browser.programs

test-browser: $(VENV)/browser.stamp
	$(VENV)/bin/python -m pytest -q -p no:randomly tests/browser/*_page.py $(PYTEST_ARGS)

check: $(VENV)/dev.stamp
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m pytest -q -p no:randomly tests/test_imports.py

# The peers we measure against live in an environment of their own.
bench: $(BENCH_VENV)/bench.stamp
	$(BENCH_VENV)/bin/python tests/redis_program.py
	$(BENCH_VENV)/bin/python bench/pool.py $(BENCH_ARGS)
	$(BENCH_VENV)/bin/python bench/run.py $(BENCH_ARGS)
	$(BENCH_VENV)/bin/python bench/stores.py $(BENCH_ARGS)
	$(BENCH_VENV)/bin/python bench/cluster.py $(BENCH_ARGS)
	$(BENCH_VENV)/bin/python bench/cli.py $(BENCH_ARGS)
	$(BENCH_VENV)/bin/python bench/strategies.py
	$(BENCH_VENV)/bin/python bench/matrix.py
	$(BENCH_VENV)/bin/python bench/drain.py $(BENCH_ARGS)
	$(BENCH_VENV)/bin/python bench/transport.py $(BENCH_ARGS)
	$(BENCH_VENV)/bin/python bench/gateway_programs.py
	$(BENCH_VENV)/bin/python bench/gateway.py $(BENCH_ARGS)
	$(BENCH_VENV)/bin/python bench/tokens.py
	$(BENCH_VENV)/bin/python bench/limiters.py $(BENCH_ARGS)
	$(BENCH_VENV)/bin/python bench/limiters_virtual.py
	$(BENCH_VENV)/bin/python bench/drain_virtual.py

# The page: how large, how quick to write and to open, and what being watched costs a run. In a real browser.
bench-page: $(VENV)/browser.stamp
	$(VENV)/bin/python bench/page.py $(BENCH_ARGS)

# The core against the naive pool, on a million steps that were never walked before.
fuzz: $(VENV)/dev.stamp
	AGENTOS_FUZZ_STEPS=1000000 $(VENV)/bin/python -m pytest -q tests/pool/core/test_against_reference.py

# Random shell scripts with holes, run in all of these shells: each is refused, or no item is executed. Then drivers that
# share keys, killed, stopped, suspended and forked at random. Then clients of a gateway that leave or send nonsense.
SOAK_SHELLS ?= dash bash zsh mksh
SOAK_SCRIPTS ?= 100000
SOAK_KILLS ?= 500
SOAK_ABORTS ?= 100000
SOAK_MALFORMED ?= 100000
soak: $(VENV)/dev.stamp
	@for shell in $(SOAK_SHELLS); do \
		command -v $$shell >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y $$shell; } >/dev/null 2>&1 || \
			{ echo "make soak: $$shell is not installed, and could not be; name others with SOAK_SHELLS='dash bash'" >&2; exit 1; }; \
	done
	AGENTOS_SHELLS="$(SOAK_SHELLS)" AGENTOS_RANDOM_SCRIPTS=$(SOAK_SCRIPTS) \
		$(VENV)/bin/python -m pytest -s -q -p no:randomly --timeout 14400 tests/runs/commands/test_random_scripts.py $(PYTEST_ARGS)
	AGENTOS_SOAK_KILLS=$(SOAK_KILLS) $(VENV)/bin/python -m pytest -s -q -p no:randomly tests/soak/random_kills.py $(PYTEST_ARGS)
	AGENTOS_SOAK_ABORTS=$(SOAK_ABORTS) AGENTOS_MALFORMED=$(SOAK_MALFORMED) $(VENV)/bin/python -m pytest -s -q -p no:randomly \
		--timeout 14400 tests/soak/gateway_aborts.py tests/gateway/test_malformed.py $(PYTEST_ARGS)

# Whole runs, killed: at every system call by which a small one writes (needs strace), then at 10,000 random moments.
CRASH_KILLS ?= 10000
crash: $(VENV)/dev.stamp
	AGENTOS_CRASH_KILLS=$(CRASH_KILLS) $(VENV)/bin/python -m pytest -s -p no:randomly \
		tests/runs/crash/every_call.py tests/runs/crash/test_kills.py $(PYTEST_ARGS)

format: $(VENV)/dev.stamp
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) $(BENCH_VENV) $(AGENTS)

$(VENV)/run.stamp: pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(VENV)/bin/python $(PIP) install --editable .
	touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	PIP_CONSTRAINT=constraints.txt $(VENV)/bin/python $(PIP) install --editable '.[dev]'
	touch $@

$(VENV)/browser.stamp: $(VENV)/dev.stamp
	PIP_CONSTRAINT=constraints.txt $(VENV)/bin/python $(PIP) install --editable '.[dev,browser]'
	$(VENV)/bin/python -m tests.browser.programs
	touch $@

$(BENCH_VENV)/bench.stamp: pyproject.toml constraints.txt
	test -x $(BENCH_VENV)/bin/python || $(PYTHON) -m venv $(BENCH_VENV)
	PIP_CONSTRAINT=constraints.txt $(BENCH_VENV)/bin/python $(PIP) install --editable '.[bench]'
	touch $@

# The versions are those of tests/agents/programs.
$(AGENTS)/agents.stamp: tests/agents/programs/package.json tests/agents/programs/requirements.txt
	@command -v npm >/dev/null || { echo "make agents: npm is not installed; it comes with Node (https://nodejs.org)" >&2; exit 1; }
	mkdir -p $(AGENTS)
	cp tests/agents/programs/package.json $(AGENTS)/package.json
	npm install --fetch-retries 5 --no-audit --no-fund --loglevel error --prefix $(AGENTS)
	@command -v nginx >/dev/null || test -x /usr/sbin/nginx || \
		{ [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y nginx-light; } >/dev/null 2>&1 || \
		{ echo "make agents: nginx is not installed, and could not be" >&2; exit 1; }
	test -x $(AGENTS)/python/bin/python || $(PYTHON) -m venv $(AGENTS)/python
	$(AGENTS)/python/bin/python $(PIP) install --requirement tests/agents/programs/requirements.txt
	touch $@
