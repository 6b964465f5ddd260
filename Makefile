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
EVALUATE = $(BIN)/python -m eval.run -m collection=$(TEST) 'out=$(TABLE)/eval/$@/$${hydra:job.num}'
TRAIN = $(BIN)/python -m training.train 'data.pairs=["$(DATA)/train/*.jsonl.gz"]' wandb.mode=disabled

# The trained rows of the README's table, and what each says to training.train.
RECIPE_run-1 := experiment=hyte seed=1
RECIPE_run-2 := experiment=hyte seed=2
RECIPE_run-3 := experiment=hyte seed=3
RECIPE_run-4 := experiment=hyte seed=4
RECIPE_oem := experiment=hyte pooling=oem
RECIPE_einstein := experiment=hyte pooling=einstein
RECIPE_euclid := experiment=hyte pooling=mean loss=angle
RECIPE_hierarchy := experiment=hyte 'hierarchy.pairs=["$(TABLE)/wordnet.jsonl.gz"]' hierarchy.weight=1.0
RECIPE_idf := pooling=mean model.hidden=768 model.start=pairs steps=0 tokens.weighting=idf
RECIPE_untrained := pooling=mean model.hidden=768 model.start=pairs steps=0
# Those that are the mean of the weights of others: HYTE is without a teacher, SHIPPED with one; -again is other seeds.
MEANS := hyte hyte-again shipped shipped-again
MEAN_hyte := run-1 run-2
MEAN_hyte-again := run-3 run-4
MEAN_shipped := run-1 run-2 taught-1 taught-2
MEAN_shipped-again := run-3 run-4 taught-3 taught-4

.PHONY: help .venv lint test test-slow soak latency demo table controls alpha bm25 bm25-hyte reported recipe assets clean
.SECONDARY:  # keep the artifacts of table

help:
	@grep -E '^[a-z0-9.-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## / - /'

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
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-slow: .venv ## longer tests, most of which need ../shared/data (or HYTE_DATA=FOLDER), under 12 minutes
	HYTE_DATA=$(abspath $(DATA)) $(BIN)/python -m pytest -m slow

soak: .venv ## 1,000 kills, every flip and truncation, ten minutes of damaged files (twenty where atheris is installed)
	$(BIN)/python -m tests.soak --kills 1000 --fuzz 600

latency: .venv ## what opening, searching and adding cost on one core, at 1,500 chunks and, for adding, at 59,216
	$(BIN)/python -m eval.latency $(DATA)/beir/scifact.zip --chunks 1500 --grown 59216

demo: .venv ## train, export, evaluate, index and search the built-in collection, 2 to 6 minutes
	$(BIN)/python demo.py --out $(DEMO)

# The README's tables. Training is done once; rm -r outputs/table starts afresh.
table: .venv bm25 bm25-hyte reported lorentz-oem $(foreach row,$(MEANS) run-1,lorentz-$(row) hybrid-$(row)) ## the README's table, an hour and a half
	$(BIN)/python -m eval.collect $(TABLE)/eval/*/*/metrics.json

controls: .venv $(foreach row,run-1 oem einstein hierarchy,lorentz-$(row)) $(foreach row,run-1 euclid idf untrained,angle-$(row)) ## is it the geometry?
	$(BIN)/python -m eval.compare $(foreach row,lorentz-run-1 angle-run-1 angle-euclid lorentz-oem lorentz-einstein lorentz-hierarchy angle-idf angle-untrained,$(TABLE)/eval/$(row))

$(TABLE)/teacher.safetensors: | .venv
	$(BIN)/python -m training.teacher 'data.pairs=["$(DATA)/train/*.jsonl.gz"]' out=$@

$(TABLE)/wordnet.jsonl.gz: | .venv  # Debian: apt-get install wordnet-base
	$(BIN)/python -m training.wordnet /usr/share/wordnet --out $@
$(TABLE)/hierarchy/checkpoint.safetensors: | $(TABLE)/wordnet.jsonl.gz

$(TABLE)/taught-%/checkpoint.safetensors: $(TABLE)/run-%/checkpoint.safetensors | $(TABLE)/teacher.safetensors
	$(TRAIN) experiment=hyte_teacher distillation.cache=$(TABLE)/teacher.safetensors checkpoint=$(TABLE)/run-$* seed=$* out=$(@D)

$(TABLE)/%/checkpoint.safetensors: | .venv
	$(TRAIN) $(RECIPE_$*) out=$(TABLE)/$*

define MEAN
$(TABLE)/$(1)/checkpoint.safetensors: $(foreach run,$(MEAN_$(1)),$(TABLE)/$(run)/checkpoint.safetensors)
	$(BIN)/python -m training.average $(foreach run,$(MEAN_$(1)),$(TABLE)/$(run)) --out $(TABLE)/$(1)
endef
$(foreach mean,$(MEANS),$(eval $(call MEAN,$(mean))))

$(TABLE)/%/artifact: $(TABLE)/%/checkpoint.safetensors
	$(BIN)/python -m export.run checkpoint=$(TABLE)/$* out=$@ && touch $@

bm25: .venv ## rows that need no training: BM25 over white space
	$(EVALUATE) retrieval.mode=bm25
bm25-hyte: .venv ## BM25 over English stems
	$(EVALUATE) experiment=hyte retrieval.mode=bm25
reported: .venv ## what was published
	$(EVALUATE) experiment=paper_reported
lorentz-%: $(TABLE)/%/artifact
	$(EVALUATE) artifact=$< experiment=hyte retrieval.mode=lorentz
angle-%: $(TABLE)/%/artifact
	$(EVALUATE) artifact=$< experiment=hyte retrieval.mode=lorentz pooling.radius=1
hybrid-%: $(TABLE)/%/artifact
	$(EVALUATE) artifact=$< experiment=hyte

alpha: $(TABLE)/shipped/artifact ## how alpha and M were chosen, on the three dev collections
	$(BIN)/python -m eval.run -m experiment=hyte artifact=$< collection=$(DEV) retrieval.drop_same_id=false \
		retrieval.alpha=0.0,0.4,0.5,0.6,0.7,0.8,1.0 retrieval.fusion=minmax,zscore 'out=$(TABLE)/alpha/$${hydra:job.num}'
	$(BIN)/python -m eval.collect $(TABLE)/alpha/*/metrics.json

recipe: $(TABLE)/teacher.safetensors ## the search of training/RECIPE.md, two hours
	mkdir -p outputs/recipe && ln -f $< outputs/recipe/teacher.safetensors
	$(BIN)/python -m training.recipe $(DATA) --out outputs/recipe

assets: $(TABLE)/shipped/checkpoint.safetensors ## the shipped weights
	$(BIN)/python -m export.run checkpoint=$(TABLE)/shipped out=hyte/assets rows=int8 onnx=false

clean: ## remove what the targets made
	rm -rf .venv outputs build dist *.egg-info
