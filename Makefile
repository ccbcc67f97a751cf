# `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup demo check audit test faults soak limits flood fuzz browser docs screenshots pythons bench bench-check bench-peers bench-runs bench-view clients lock dist clean

bin := .venv/bin
ready := .venv/.ready

# Commands start many processes: compiling the modules each time would take most of their time.
unexport PYTHONDONTWRITEBYTECODE

# Six processes, each with its own RabbitMQ and PostgreSQL: on two cores, because two thirds of the time of a test are
# waiting. A file's tests stay together, and files start in this order: the folders with the longest tests come first. If
# the environment names a server, one process runs all tests.
parallel := $(if $(QUINTAIN_TEST_BROKER_URL)$(QUINTAIN_TEST_POSTGRES_URL),,-n 6 --dist loadfile --no-loadscope-reorder)
folders := $(addprefix tests/,faults acceptance integration superred browser conformance clients outside unit test_house.py)

help:
	@echo "make WORD, where WORD is one of:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F '|' '{ printf "%-13s %s\n", $$1, $$2 }'

setup: $(ready)  ## create .venv with all pinned packages; the other targets do it themselves
demo: $(ready)   ## run a demonstration in a minute: no key, no broker
	$(bin)/quintain demo
check: $(ready)  ## format, lint, types and the import rules
	$(bin)/ruff format --check
	$(bin)/ruff check
	$(bin)/mypy
	$(bin)/lint-imports
	$(bin)/python deploy/audit.py --report
audit: $(ready)  ## fail if a pinned package has a known vulnerability (`make check` reports them)
	$(bin)/python deploy/audit.py
test: $(ready)   ## the whole suite, against a real RabbitMQ (ARGS="-k words" selects)
ifdef ARGS
	$(bin)/pytest $(ARGS)
else
	$(bin)/pytest $(parallel) --durations=60 $(folders)
endif
clients: $(ready) ## run other people's tools against a gateway; each is installed in ~/.cache/quintain/clients
	QUINTAIN_TEST_CLIENTS=$(or $(QUINTAIN_TEST_CLIENTS),all) $(bin)/pytest tests/clients $(ARGS)
pythons: $(ready) ## install the wheel in each Python from 3.11 to 3.14 on the PATH, and use it
	$(bin)/pytest tests/pythons $(ARGS)
faults: $(ready) ## inject faults into real processes, two files of tests at a time, and check the ledger
	QUINTAIN_TEST_FAULTS=long $(bin)/pytest -v $(if $(parallel),-n 2 --dist loadfile) tests/faults tests/superred $(ARGS)
soak: $(ready)   ## load for an hour, half of it with random kills; a call of 40 minutes, an outage of 20 (QUINTAIN_TEST_SOAK_MINUTES=2: shorter)
	QUINTAIN_TEST_FAULTS=all $(bin)/pytest tests/faults/test_soak.py tests/faults/test_soak_providers.py $(ARGS)
limits: $(ready) ## runs over a provider that limits its key, in all its forms, and one that is down for two minutes
	QUINTAIN_TEST_FAULTS=all $(bin)/pytest $(if $(parallel),-n 3 --dist loadgroup) tests/faults/test_limits.py $(ARGS)
flood: $(ready)  ## floods of large messages by a user without a session, with the limits of a deployment
	QUINTAIN_TEST_FAULTS=long $(bin)/pytest tests/faults/test_floods.py $(ARGS)
fuzz: $(ready)   ## hostile messages, bodies and requests to every consumer and route: more, and others each time
	$(bin)/pytest --hypothesis-profile=long tests/unit/test_fuzz_consumers.py tests/unit/gateway \
	  tests/integration/test_hostile_amqp.py $(ARGS)
browser: $(ready)  ## all pages in Chromium
	$(bin)/pytest tests/browser $(ARGS)
docs: $(ready)   ## build docs/ as a site into site/html, and check every link
	cd docs && ../$(bin)/python -m generate.site
screenshots: $(ready)  ## make the pictures of the pages in docs/ again
	cd tests && ../$(bin)/python -m support.screenshots
bench: $(ready)  ## measure calls beside a bare aio-pika loop, into docs/benchmarks.md
	$(bin)/python benchmarks/bench.py
	$(bin)/python benchmarks/in_flight.py
bench-check: $(ready) ## three ratios of `make bench`, 1 min: fails if one is worse than it may be
	$(bin)/python benchmarks/bench.py --check
bench-peers: $(ready) ## measure other libraries and proxies beside Quintain, each in ~/.cache/quintain/clients
	$(bin)/python benchmarks/targets.py
	$(bin)/python benchmarks/peers.py $(ARGS)
bench-runs: $(ready) ## measure `quintain run` beside Inspect and promptfoo, each in ~/.cache/quintain/clients
	$(bin)/python benchmarks/runs.py $(ARGS)
bench-view: $(ready) ## measure the pages: a million rows, 1,000 targets, a run with its page open, beside inspect view
	$(bin)/python benchmarks/view.py $(ARGS)
	$(bin)/python benchmarks/view_beside.py
dist: $(ready)   ## build the wheel, the source archive and the bill of materials (CycloneDX) into dist/
	$(bin)/python -m build --no-isolation
	$(bin)/python deploy/sbom.py > dist/quintain.cdx.json

# The build tools are pinned too: the setup builds this checkout without downloading anything else.
lock: $(ready)   ## pin the dependencies again (ARGS=--upgrade: to the newest compatible ones)
	printf 'hatchling\neditables\n' | $(bin)/uv pip compile - pyproject.toml --extra all --group dev --universal \
	  --python-version 3.11 --generate-hashes --no-emit-index-url --quiet $(ARGS) \
	  --custom-compile-command "make lock" --output-file requirements.lock

clean:           ## remove what these targets created; evaluations in runs/ stay
	rm -rf .venv dist site quintain-demo .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find shared services tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

$(ready): requirements.lock pyproject.toml deploy/setup deploy/install
	@deploy/setup
