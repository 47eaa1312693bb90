# Everything is installed into .venv from the package index; nothing else is needed but Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: up test check clean bench-embedding

up: .venv/.installed
	@$(BIN)/butler-memory up $(ARGS)

test: check
	@$(BIN)/pytest -n 2 --dist loadfile $(ARGS)

check: .venv/.dev
	@$(BIN)/ruff format --check -q src tests bench
	@$(BIN)/ruff check -q src tests bench
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench-embedding: .venv/.dev
	@$(BIN)/python bench/embedding.py $(ARGS)

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

clean:
	rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
