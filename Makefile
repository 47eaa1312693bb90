# Everything is installed into .venv from the package index; nothing else is needed but Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin

# The quality bench's data, where it lies beside the project; what ARGS says comes after it and wins.
BENCH_DATA := $(wildcard ../shared/bench)
QUALITY_ARGS := $(if $(BENCH_DATA),--locomo $(BENCH_DATA)/locomo_dev.json --precision $(BENCH_DATA)/precisionmembench)

.PHONY: up test check clean bench-embedding bench-quality bench-speed bench-sweep bench-consolidation bench-faults

up: .venv/.installed
	@$(BIN)/butler-memory up $(ARGS)

test: check
	@$(BIN)/pytest -n 2 --dist loadfile $(ARGS)

check: .venv/.dev
	@$(BIN)/ruff format --check -q src tests bench
	@$(BIN)/ruff check -q src tests bench
	@$(BIN)/mypy
	@$(BIN)/mypy bench
	@$(BIN)/lint-imports

bench-embedding: .venv/.dev
	@$(BIN)/python bench/embedding.py $(ARGS)

bench-quality: .venv/.bench
	@$(BIN)/python bench/quality.py $(QUALITY_ARGS) $(ARGS)

bench-speed: .venv/.bench
	@$(BIN)/python bench/speed.py $(ARGS)

bench-sweep: .venv/.bench
	@$(BIN)/python bench/sweep.py $(ARGS)

bench-consolidation: .venv/.bench
	@$(BIN)/python bench/consolidation.py $(ARGS)

bench-faults: .venv/.dev
	@ROUNDS=10 $(BIN)/pytest tests/postgres/test_faults.py tests/postgres/test_consolidation_faults.py $(ARGS)

.venv/.installed: pyproject.toml
	@echo "Setting up .venv (a minute the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/pip install -q --disable-pip-version-check -e .
	@touch $@

.venv/.dev: .venv/.installed
	@echo "Adding the test tools"
	@$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

.venv/.bench: .venv/.installed
	@echo "Adding matplotlib for the plots"
	@$(BIN)/pip install -q --disable-pip-version-check -e '.[bench]'
	@touch $@

clean:
	rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
