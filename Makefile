# Everything runs in a virtual environment that these targets set up for themselves, and repair.

# Where it is; and which Python makes it (empty: the first usual name that is new enough).
VENV ?= .venv
PYTHON ?=
# Handed on, as in: make demo ARGS=--full     make test ARGS="-k mask"
ARGS ?=

set-up = @python=$$(sh scripts/python.sh '$(PYTHON)') && \
	"$$python" scripts/setup.py --venv '$(VENV)'
run = '$(VENV)/bin/python'
# One thread in each of several processes: 84 s on two cores, where one process takes 126 s.
pytest = OMP_NUM_THREADS=1 $(run) -m pytest -n auto --maxprocesses 8

.DEFAULT_GOAL := help
.PHONY: demo test test-all quick lint model format clean help

demo: ## attention from first principles, with numbers and pictures (into outputs/)
	$(set-up)
	@$(run) build.py $(ARGS)

test: lint ## everything that a change must pass: lint and all tests but the slow ones
	$(pytest) -m 'not slow' $(ARGS)

test-all: test ## the same, then the slow tests, which have the machine to themselves
	$(run) -m pytest -m slow $(ARGS)

quick: ## the tests that matter most, in thirty seconds
	$(set-up) --dev
	$(pytest) -m quick $(ARGS)

lint: ## ruff (rules and format) and mypy
	$(set-up) --dev
	$(run) -m ruff check
	$(run) -m ruff format --check
	$(run) -m mypy

model: ## train the model in the box again, in an hour and a half
	$(set-up)
	$(run) scripts/model.py

format: ## put the code into the house format
	$(set-up) --dev
	$(run) -m ruff check --fix-only --quiet
	$(run) -m ruff format

clean: ## remove the virtual environment, caches and build outputs; outputs/ stays
	@if [ -e '$(VENV)/clearhead-setup.json' ]; then rm -rf '$(VENV)'; fi
	@rm -rf build dist src/*.egg-info src/clearhead/engine/_native*.so .hypothesis tests/.hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -path './.*' -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
	@for kept in '$(VENV)' outputs; do if [ -e "$$kept" ]; then echo "kept: $$kept"; fi; done

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1#/p' Makefile | awk -F'#' '{ printf "%-16s %s\n", $$1, $$2 }'
