# Needs python3 >= 3.11 (with venv) and make; everything else is installed into $(VENV).
# VENV=dir uses another environment, PYTHON=... another interpreter to create it, ARGS="..." is passed on.

VENV ?= .venv
PYTHON ?= python3
OUT ?= results
JOBS ?= 2
ARGS ?=

bin := $(VENV)/bin
# A stamp is as old as the last install; a changed pyproject.toml makes it stale.
define install
@echo "installing .[$(1)] into $(VENV): about a minute, silent unless something is wrong"
@PIP_DISABLE_PIP_VERSION_CHECK=1 $(bin)/python .ci/install.py -e '.[$(1)]'
endef
bench_extras := demo,bench

# A process that dies ends the tests: with loadgroup pytest-xdist 3.8.0 would wait for it for ever.
spread := -n $(JOBS) --dist loadgroup --max-worker-restart=0

# $(call pytest,OPTIONS): pytest's exit code 5 says that nothing was collected.
define pytest
@$(info pytest $(1) $(ARGS))$(bin)/python -m pytest $(1) $(ARGS) || { code=$$?; \
	if [ $$code -eq 5 ]; then echo "error: not one test was selected" >&2; fi; exit $$code; }
endef

# Programs as accelerators get them, where the rooms have any: a CPU's own are in the rest.
as_accelerator := $(addprefix tests/,algorithms clients datasets diagnostics optim run studies)

# Those tests need eight devices, which a process has to say before JAX starts. ARGS may leave none of them.
define pytest_on_devices
@$(info pytest tests/engine/test_mesh.py on eight devices $(1) $(ARGS))JAX_NUM_CPU_DEVICES=8 $(bin)/python -m pytest \
	tests/engine/test_mesh.py $(1) $(ARGS) || { code=$$?; [ $$code -eq 5 ] || exit $$code; }
endef

.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help demo site methods test faults test-slow test-docs test-all experiments notebooks nightly lint format bench peers reproduce clean distclean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.stamp-demo ## install what the demo needs and run it; writes to OUT=results
	$(bin)/fedjax-sim demo --out "$(OUT)" $(ARGS)

site: $(VENV)/.stamp-docs ## the documentation as a site, in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(bin)/python -m mkdocs build -f docs/site/mkdocs.yml

test: $(VENV)/.stamp-test ## the fast tests and the short examples of docstrings
	$(call pytest,$(spread))
	$(call pytest_on_devices,$(spread))

test-slow: $(VENV)/.stamp-test ## only the slow tests
	$(call pytest,$(spread) -m "slow and not nightly")
	$(call pytest_on_devices,$(spread) -m "slow and not nightly")

test-docs: $(VENV)/.stamp-test ## the code blocks of README and docs, and the notebooks
	$(call pytest,-n $(JOBS) -m docs tests/house/test_documents.py tests/house/test_notebooks.py)

test-all: $(VENV)/.stamp-test ## the fast and the slow tests
	$(call pytest,$(spread) -m "not nightly and not smoke and not docs")
	$(call pytest_on_devices,$(spread) -m "not nightly and not smoke and not docs")

experiments: $(VENV)/.stamp-test ## every experiment of the papers at its smoke size
	$(call pytest,-n $(JOBS) -m smoke --durations=5 tests/papers/test_experiments.py tests/papers/test_experiments_at_paper_size.py)

methods: $(VENV)/.stamp-test ## write what is made of the code and the docs: README's lists, tables of methods, the stub, llms.txt, AGENTS.md
	$(bin)/python docs/site/tables.py
	$(bin)/python docs/site/programs.py

notebooks: $(bin)/python ## write what all notebooks begin with: badges, the cell that installs
	$(bin)/python notebooks/first_cells.py

nightly: $(VENV)/.stamp-test ## the slow and the nightly tests, 20,000 hostile files, and the fast tests as on an accelerator
	$(bin)/python -m tests.fuzzing --inputs 20000 --seed 0
	$(call pytest,$(spread) --as-accelerator $(as_accelerator))
	$(call pytest_on_devices,$(spread) -m "slow or nightly")
	$(call pytest,$(spread) -m "slow or nightly")

faults: $(VENV)/.stamp-test ## plant the faults of tests/faults, say which ones the fast tests notice: an hour or two; ARGS="ROOM"
	$(bin)/python -m tests.faults --jobs $(JOBS) $(ARGS)

lint: $(VENV)/.stamp-test ## ruff (rules and format) and mypy
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/mypy

format: $(VENV)/.stamp-test ## let ruff mend what it can
	$(bin)/ruff check --fix .
	$(bin)/ruff format .

bench: $(VENV)/.stamp-bench ## the speed benchmarks, with the pinned peer
	$(bin)/python -m benchmarks.speed.spine $(ARGS)

peers: $(VENV)/.stamp-demo ## other simulators on the same problems, each in an environment of its own (15 GB)
	$(bin)/python -m benchmarks.speed.peers $(ARGS)

reproduce: $(VENV)/.stamp-demo ## the papers' experiments on two cores, about twelve hours; goes on where it was stopped
	$(bin)/fedjax-sim reproduce --all --size cpu --out "$(OUT)/reproduce" $(ARGS)

clean: ## remove builds and caches
	rm -rf build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name '.?*' -prune -o -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## and the environment .venv
	rm -rf .venv

$(bin)/python:
	@$(PYTHON) -c 'import sys; sys.exit("fedjax_sim needs Python >= 3.11, $(PYTHON) is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv "$(VENV)"

$(VENV)/.stamp-demo: pyproject.toml | $(bin)/python
	$(call install,demo)
	@touch $@

$(VENV)/.stamp-test: pyproject.toml | $(bin)/python
	$(call install,test)
	@touch $@

$(VENV)/.stamp-docs: pyproject.toml | $(bin)/python
	$(call install,docs)
	@touch $@

$(VENV)/.stamp-bench: pyproject.toml | $(bin)/python
	$(call install,$(bench_extras))
	@touch $@
