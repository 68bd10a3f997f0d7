# `make quickstart` and `make test` are all the set-up there is; both can be repeated.
PYTHON    ?= python3
VENV      ?= .venv
CONFIG    ?= configs/quickstart.yaml
PROCESSES ?= 2
INPUTS    ?= 10000
# Overrides of single keys, e.g. make quickstart OVERRIDES="train.steps=100 run.name=short"
OVERRIDES ?=
BIN       := $(VENV)/bin
AUDIT     := $(VENV)-audit
READY     := $(VENV)/.installed
CORPUS    := corpora/python-stdlib
SOURCE    := --source python-stdlib

# Of `make soak`.
MINUTES   ?= 20
SEED      ?= 0
# Of `make elastic`; all of them without a name.
OPTIMIZERS ?=
PRECISIONS ?=
# Of `make arena`: a folder with train.txt and valid.txt, English books whose titles stand in lines "# Title: ...".
BOOKS     ?= books

.PHONY: quickstart test soak elastic arena arena-full fuzz audit lint docs install corpus clean

quickstart: $(READY) $(CORPUS)/manifest.json
	$(BIN)/deepspeed --num_accelerators $(PROCESSES) launch/doctor.py --config $(CONFIG) $(OVERRIDES)
	$(BIN)/deepspeed --num_accelerators $(PROCESSES) launch/pretrain.py --config $(CONFIG) $(OVERRIDES)

# One test file at a time in each of three workers: tests of a file share fixtures that are slow to make. Two cores bear
# three workers, because processes that wait for each other leave them idle. Files run in the order of their folders, long
# distributed ones first: by default files with few tests would come last, and those are long.
# Hundreds of processes start: none compiles again because some environments forbid to keep compiled modules.
test: export PYTHONDONTWRITEBYTECODE =
test: lint
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# Inputs of all kinds with fresh seeds, about 10 minutes for each 10,000. `make test` tries few of each kind.
fuzz: $(READY)
	FUZZ_INPUTS=$(INPUTS) $(BIN)/python -m pytest -n 0 -q tests/fuzz

# Known weaknesses of all pinned packages. pip-audit has an environment of its own, so that its dependencies pin nothing.
# --strict: a package that the database does not know is no package without weaknesses.
audit: $(READY) $(AUDIT)/bin/pip-audit
	$(BIN)/python -m pip check
	@$(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt || \
	{ echo "make audit: a package has a weakness or was not found, see above; raise its version, or let pypi.org be reached"; exit 1; }

$(AUDIT)/bin/pip-audit:
	@$(PYTHON) -m venv $(AUDIT) && $(AUDIT)/bin/python -m pip install -q pip-audit==2.10.1 || \
	{ rm -rf $(AUDIT); echo "make audit: pip-audit cannot be installed, see above; let pypi.org be reached"; exit 1; }

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m mypy

# Kills runs at random moments for so many minutes, and compares them with runs in peace, bit for bit.
soak: $(READY)
	PYTHONPATH=.:tests $(BIN)/python -m soak --minutes $(MINUTES) --seed $(SEED)

# Resumes runs on other numbers of processes and at other ZeRO stages, with every optimizer and in both precisions.
elastic: $(READY)
	PYTHONPATH=.:tests $(BIN)/python -m soak.elastic $(OPTIMIZERS:%=--optimizer %) $(PRECISIONS:%=--precision %)

# Optimizers and formats of the field side by side, with 5 tokens for each parameter of the dense matrices or with 20.
# Runs that benchmarks/results/ records are not repeated.
arena arena-full: corpora/books1024/manifest.json
	$(BIN)/python benchmarks/quality/ladder.py arena64$(if $(filter arena,$@),_starved)
	$(BIN)/python benchmarks/quality/frontiers.py arena64$(if $(filter arena,$@),_starved)

corpora/books1024/manifest.json: | $(READY)
	@test -f $(BOOKS)/train.txt && test -f $(BOOKS)/valid.txt || \
	{ echo "make arena: $(BOOKS)/train.txt or $(BOOKS)/valid.txt is missing; name their folder, e.g. BOOKS=texts/books"; exit 1; }
	$(BIN)/python data_prep/train_tokenizer.py --source files:$(BOOKS)/train.txt --document-separator '# Title: .*' \
	--valid-fraction 0 --vocab-size 1024 --output corpora/books1024.model
	$(BIN)/python data_prep/tokenize_corpus.py --tokenizer corpora/books1024.model --source files:$(BOOKS)/train.txt \
	--valid-source files:$(BOOKS)/valid.txt --document-separator '# Title: .*' --output corpora/books1024

# A broken link is an error. The variable silences an advertisement for mkdocs-material's successor.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

install: $(READY)

corpus: $(CORPUS)/manifest.json

# torch comes first and by exact version: a CPU-only machine that offers a CPU build then pulls no CUDA packages.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt torch==2.13.0 setuptools wheel
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

$(CORPUS)/manifest.json: | $(READY)
	$(BIN)/python data_prep/train_tokenizer.py $(SOURCE) --vocab-size 4096 --output $(CORPUS)/tokenizer.model
	$(BIN)/python data_prep/tokenize_corpus.py $(SOURCE) --tokenizer $(CORPUS)/tokenizer.model --output $(CORPUS)

clean:
	rm -rf runs corpora site $(AUDIT)
