PYTHON ?= python3
BIN := .venv/bin

# What holds every library to AVX2 on a processor that has more: OpenBLAS, oneDNN, torch, and MKL
# on Intel. The others run as the processor is.
ifeq ($(shell uname -m),x86_64)
AVX2 := ONEDNN_MAX_CPU_ISA=AVX2 OPENBLAS_CORETYPE=Haswell ATEN_CPU_CAPABILITY=avx2 \
        MKL_ENABLE_INSTRUCTIONS=AVX2
endif

# Two processes of tests share two processors. Threads that wait in a loop keep the others from
# working: 300 steps of a small net take 77 s, and 0.5 s where waiting threads sleep.
test test-avx2 test-all: export OMP_WAIT_POLICY := passive
# With it every process compiles all modules anew.
unexport PYTHONDONTWRITEBYTECODE

# These have processes of their own: a file's tests run one after another, clusters one at a time.
APART := spark or processes or fault or browser or slow
BESIDE := -n 2 --dist loadfile
# To collect all tests takes longer than to run those that are held to AVX2.
APART_FILES = $(shell grep -rlE 'mark\.(spark|processes|fault|browser|slow)' tests --include='test_*.py' | sort)
AVX2_FILES = $(shell grep -rl 'mark\.numerics' tests --include='test_*.py' | sort)
# A process that has no tests left takes some of the other's.
QUICK := -n 2 --dist worksteal

.PHONY: setup setup-dev demo test test-avx2 test-all lint docs clean

setup:
	@$(PYTHON) bootstrap.py

setup-dev:
	@$(PYTHON) bootstrap.py --dev

demo: setup
	@$(BIN)/photinus demo

test: setup-dev
	-@$(BIN)/photinus doctor > /dev/null  # then each Spark that the tests start is there sooner
	$(BIN)/python -m pytest -q $(QUICK) -m "not ($(APART))"
	$(BIN)/python -m pytest -q $(BESIDE) -m "($(APART)) and not slow" $(APART_FILES)
	@$(MAKE) --no-print-directory test-avx2

test-avx2: setup-dev
	$(AVX2) $(BIN)/python -m pytest -q $(QUICK) -m "numerics and not slow" $(AVX2_FILES)

test-all: setup-dev
	$(BIN)/python -m pytest -q -rs $(QUICK) --durations=30 -m "not ($(APART))"
	$(BIN)/python -m pytest -q -rs $(BESIDE) --durations=30 -m "$(APART)" $(APART_FILES)
	@$(MAKE) --no-print-directory test-avx2

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy --strict

docs: setup-dev
	@$(BIN)/python -m pip install -q -e '.[docs]'
	@$(BIN)/python docs/make_notebook.py
	@$(BIN)/mkdocs build -q
	@echo 'build/site/index.html'

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
