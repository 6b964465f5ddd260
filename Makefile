# make help lists what there is. Every target sets up .venv first if it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin
DEMO := outputs/demo

.PHONY: help test test-slow lint demo clean

help:
	@grep -E '^[a-z.-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/  -/'

.venv: pyproject.toml constraints.txt ## set-up alone: a virtual environment with every extra
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[all]'
	@touch .venv

lint: .venv ## style, types, and which folder may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint ## lint, types and the tests (under 6 minutes on 2 cores)
	$(BIN)/python -m pytest -m "not slow"

test-slow: .venv ## longer tests, most of which need ../shared (under 12 minutes)
	$(BIN)/python -m pytest -m slow

demo: .venv ## train, evaluate, export, index and search the built-in collection (5 minutes)
	$(BIN)/python demo.py --out $(DEMO)

clean: ## remove what the targets made
	rm -rf .venv outputs build dist *.egg-info
