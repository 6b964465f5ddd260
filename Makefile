# `make help` lists the targets. Every target sets up .venv first if it is missing or older than its two lists.
PYTHON ?= python3
BIN := .venv/bin
DEMO := outputs/demo
TABLE := outputs/table
DATA ?= $(or $(HYTE_DATA),../shared/data)

comma := ,
sets = $(subst $() ,$(comma),$(foreach name,$(2),$(DATA)/$(1)/$(name).zip))
TEST := $(call sets,beir,scifact nfcorpus arguana)
DEV := $(call sets,dev,cacm medline1033 squad11_dev)
EVALUATE = $(BIN)/python -m eval.run -m collection=$(TEST) 'out=$(TABLE)/eval/$@-$${hydra:job.num}'

.PHONY: help .venv lint test test-slow demo table alpha bm25 reported clean
.SECONDARY:  # keep the artifacts of table

help:
	@grep -E '^[a-z.-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## / - /'

.venv: .venv/.complete ## set-up alone: a virtual environment with every extra

.venv/.complete: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[all]'
	@touch $@

lint: .venv ## style, types, and which folder may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint ## lint, types and the tests, under 6 minutes on 2 cores
	$(BIN)/python -m pytest -m "not slow"

test-slow: .venv ## longer tests, most of which need ../shared/data (or HYTE_DATA=FOLDER), under 12 minutes
	HYTE_DATA=$(abspath $(DATA)) $(BIN)/python -m pytest -m slow

demo: .venv ## train, export, evaluate, index and search the built-in collection, 3 minutes
	$(BIN)/python demo.py --out $(DEMO)

# The README's table. Training is done once; rm -r outputs/table starts afresh.
table: .venv bm25 reported $(foreach pooling,oem_radial oem,lorentz-$(pooling) paper-$(pooling) hyte-$(pooling)) ## the README's table, 23 minutes
	$(BIN)/python -m eval.collect $(TABLE)/eval/*/metrics.json

$(TABLE)/%/artifact: | .venv
	$(BIN)/python -m training.train 'data.pairs=["$(DATA)/train/*.jsonl.gz"]' pooling=$* seed=1 out=$(TABLE)/$*
	$(BIN)/python -m export.run checkpoint=$(TABLE)/$* out=$@

bm25: .venv
	$(EVALUATE) retrieval.mode=bm25 retrieval.analyzer=whitespace,english
reported: .venv
	$(EVALUATE) experiment=paper_reported
lorentz-%: $(TABLE)/%/artifact
	$(EVALUATE) artifact=$< retrieval.mode=lorentz
paper-%: $(TABLE)/%/artifact
	$(EVALUATE) artifact=$< retrieval.alpha=0.2
hyte-%: $(TABLE)/%/artifact
	$(EVALUATE) artifact=$< experiment=hyte

alpha: $(TABLE)/oem_radial/artifact ## how the table's alpha was chosen, on the three dev collections
	$(BIN)/python -m eval.run -m artifact=$< collection=$(DEV) retrieval.alpha=0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1.0 \
		'out=$(TABLE)/alpha/$${hydra:job.num}'
	$(BIN)/python -m eval.collect $(TABLE)/alpha/*/metrics.json

clean: ## remove what the targets made
	rm -rf .venv outputs build dist *.egg-info
