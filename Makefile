# `make serve` and `make test` do all they need: system packages, environment, model, then their job.
# `make faults` is the long form of tests/faults, of which `make test` runs a part. `make outcome` has a real model in
# the real Claude Code try to mend a program, and tells whether it could.
# Variables: PYTHON (3.11 or newer), EXTRA (cpu or cuda13 on Linux; nothing on macOS, which has Metal), MODEL (what
# `make serve` fetches and serves).

MODEL ?= smollm2-135m-instruct
EXTRA ?= $(if $(filter Linux,$(shell uname -s)),cpu)
BIN := .venv/bin
# Whole files, since many share a service or a model; the long ones come first. One more than there
# are cores, since tests wait a lot.
IN_PARALLEL := --numprocesses 3 --dist loadfile --no-loadscope-reorder
# CI installs exactly what was tested last; a user gets the newest that the bounds admit.
LOCK := $(if $(CI),--constraint constraints.txt)

.PHONY: serve test faults outcome check format

serve: .venv/serve-installed
	$(BIN)/mererun models pull $(MODEL)
	MERERUN_MODEL=$${MERERUN_MODEL:-$(MODEL)} exec $(BIN)/mererun serve

# Threads of several engines that wait for each other by spinning would share the machine badly.
test: .venv/dev-installed
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest $(IN_PARALLEL)

faults: .venv/dev-installed
	MERERUN_FAULTS=long $(BIN)/python -m pytest tests/faults

outcome: .venv/dev-installed
	MERERUN_OUTCOME=1 $(BIN)/python -m pytest -s tests/end_to_end/test_claude_code_outcome.py

check: .venv/dev-installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

format: .venv/dev-installed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.venv/%-installed: pyproject.toml tools/set-up
	tools/set-up $(EXTRA)
	$(BIN)/pip install --quiet $(LOCK) --editable '.[$(EXTRA)$(if $(filter dev,$*),$(if $(EXTRA),$(comma))dev)]'
	touch $@

comma := ,
