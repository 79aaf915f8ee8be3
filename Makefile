# make demo       a venv, the package, and the main job on real input (PORTABLE_BACKEND=rocm: on an AMD GPU)
# make test       the same set-up, then what to see before a push: lint, types, the quick tests, and the suite's
#                 smoke tier on an emulated gfx942, of every op.
#                 On two cores 4 minutes, and 6 more where the kernels are not in ~/.cache/portable and ~/.triton yet.
# make test-all   the rest: tests marked slow, and hypothesis with more examples.
# make lint       ruff: rules and format
# make types      pyright
# make tests      the quick tests;  make smoke: the smoke tier
# make docs       write docs/ops/<op>.md and the manifest of the cases from the specs, and docs/errors.md
# make records    run the suite on every emulated GPU and the CPU again
# make mutants    every wrong kernel against the suite, and a thousand seeds of right ones (minutes)
# make oldest-triton  Triton's kernels with the oldest Triton that pyproject.toml allows: their plans, compiled for
#                 NVIDIA and AMD, and the smoke tier on an emulated gfx942
# make clean      remove what these made
#
# Needs Python 3.10 to 3.13 and make; no GPU, no root. Another interpreter: make PYTHON=python3.12 test

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
TESTS ?= tests
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
# No test looks at log records; capturing them costs some 5 % of the quick tests.
PYTEST := $(BIN)/python -m pytest -p no:logging
IN_PARALLEL := $(PYTEST) -n $(JOBS) --dist loadgroup
SMOKE := $(BIN)/portable-conformance run --device rocm:gfx942 --emulate --tier smoke -j $(JOBS)
AGAIN := $(MAKE) --no-print-directory# by this name, since `make -n` runs the lines that name MAKE

.PHONY: demo test test-all lint types tests smoke docs mutants records oldest-triton clean
.DELETE_ON_ERROR:

# Without bytecode on disk every process compiles the package again: a quarter of the tests' time.
unexport PYTHONDONTWRITEBYTECODE

# An AMD GPU that is not there is emulated, which takes a compiler.
EMULATE := $(if $(filter 1,$(PORTABLE_EMULATE))$(filter rocm,$(PORTABLE_BACKEND)),-emulate)

demo: $(VENV)/installed$(EMULATE)
	$(BIN)/python -m portable.conformance.commands.demo

# The three beside each other; what pyright and the suite found is printed last. On two cores pytest is one process:
# two would collect the tests twice, and a third hands them out.
test: lint
	@(nice -n 19 $(BIN)/pyright >$(VENV)/pyright.log 2>&1) & types=$$!; \
	(nice -n 19 $(SMOKE) >$(VENV)/smoke.log 2>&1) & smoke=$$!; \
	$(AGAIN) tests; tests=$$?; \
	wait $$types; types=$$?; wait $$smoke; smoke=$$?; \
	cat $(VENV)/smoke.log $(VENV)/pyright.log; exit $$((tests | types | smoke))

test-all: $(VENV)/installed-test
	$(BIN)/pyright examples
	HYPOTHESIS_PROFILE=all $(IN_PARALLEL) -m "slow or hypothesis" $(TESTS)

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/lint_imports.py

types: $(VENV)/installed-test
	$(BIN)/pyright

tests: $(VENV)/installed-test
	$(if $(filter 1 2,$(JOBS)),$(PYTEST),$(IN_PARALLEL)) -m "not slow" $(TESTS)

smoke: $(VENV)/installed-test
	$(SMOKE)

docs: $(VENV)/installed
	$(BIN)/python docs/generate.py
	$(BIN)/python -m portable.conformance.execute.manifest

# The core tier of attention took 46 minutes for gfx1201 on two busy cores.
ATTENTION := attention,attention_backward,attention_dbias,attention_paged,attention_varlen,attention_varlen_backward
OTHERS = $(shell $(BIN)/python -c 'from portable.spec import registry; \
  print(",".join(sorted(op for op in registry.op_folders() if not op.startswith("attention"))))')

records: $(VENV)/installed-test
	for arch in gfx90a gfx942 gfx950 gfx1100 gfx1201; do \
	  run="$(BIN)/portable-conformance run --device rocm:$$arch --emulate -j $(JOBS)"; \
	  folder=conformance/results/emulated-$$arch; \
	  $$run --tier core --ops $(OTHERS) --record $$folder/core.json.gz || exit 1; \
	  $$run --tier core --ops $(ATTENTION) --timeout 1800 --record $$folder/core-attention.json.gz || exit 1; \
	done
	$(BIN)/portable-conformance run --device cpu -j $(JOBS) --record conformance/results/cpu/core.json.gz
	$(BIN)/python docs/emulated.py

mutants: $(VENV)/installed-test
	PORTABLE_MUTANTS=all $(IN_PARALLEL) tests/conformance/test_mutants.py

OLDEST_TRITON := $(shell sed -n 's/.*"triton>=\([0-9.]*\).*/\1/p' pyproject.toml)
OLDEST := $(VENV)/triton-$(OLDEST_TRITON)
WITH_OLDEST := PYTHONPATH=$(abspath $(OLDEST))

oldest-triton: $(VENV)/installed-test $(OLDEST)
	$(WITH_OLDEST) $(BIN)/python -c 'import triton; assert triton.__version__.startswith("$(OLDEST_TRITON).")'
	$(WITH_OLDEST) $(IN_PARALLEL) -m "" tests/kernels/_lib/test_triton_plans.py tests/kernels/_lib/test_triton_row_plans.py \
	  tests/kernels/attention/triton tests/kernels/matmul/triton
	$(WITH_OLDEST) $(SMOKE) --impl triton

$(OLDEST): $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $@ 'triton==$(OLDEST_TRITON).*'

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v < (3, 14) else \
	"portable needs Python 3.10 to 3.13; $(PYTHON) is %d.%d: set PYTHON=python3.12, say" % v)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) setuptools
	$(INSTALL) --no-build-isolation --editable .
	touch $@

$(VENV)/installed-emulate: $(VENV)/installed
	$(INSTALL) --no-build-isolation --editable '.[emulate]'
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(INSTALL) --no-build-isolation --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
