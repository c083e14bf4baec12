PYTHON ?= python3
bin    := .venv/bin
pip    := $(bin)/python -m pip install -q --disable-pip-version-check -c constraints.txt
K      ?=
select := $(if $(K),-k '$(K)')

.PHONY: help demo test check bench bench-gpu bench-peers soak lib nbs docs clean
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' Makefile

demo: .venv/.demo ## Train a small model and watch it
	@$(bin)/python demo/digits.py

test: export PYTHONDONTWRITEBYTECODE = # its many processes share compiled modules
test: .venv/.dev ## Run all notebooks and tests (some of them: make test K=schedule)
	@$(bin)/python -m pytest -q -n auto --dist worksteal $(select)

check: .venv/.dev ## Lint, and see that everything generated is up to date
	@$(bin)/ruff check -q --output-format concise learner tests tools docs $(wildcard bench demo)
	@$(bin)/python -m pytest -q tests/test_sync.py tests/test_layout.py

bench: .venv/.dev ## Measure what everything costs, into bench/results.json (some of it: make bench K=inference)
	@$(bin)/python -m bench --out bench/results.json $(select)

bench-gpu: .venv/.dev ## Measure what a batch costs on a GPU, into bench/gpu.json
	@$(bin)/python -m bench --out bench/gpu.json -k gpu

bench-peers: _build/peers/.done ## Measure other libraries too, in an environment of their own, into bench/peers.json
	@_build/peers/bin/python -m bench --peers --out bench/peers.json $(select)

soak: .venv/.dev ## Run the slow tests too, and many more random cases
	@$(bin)/python -m pytest -q --flags slow --hypothesis-profile soak $(select)

lib: .venv/.dev ## After editing a notebook: write learner/, clean nbs/, write README.md
	@$(bin)/nbdev-export
	@$(bin)/nbdev-clean
	@$(bin)/python tools/stub.py
	@$(bin)/python tools/texts.py
	@$(bin)/python tools/readme.py

nbs: lib ## Run the notebooks and store their outputs (some of them: make nbs K=schedule)
	@$(bin)/python -m pytest -q tests/test_notebooks.py --save $(select)
	@$(bin)/python tools/readme.py

docs: .venv/.dev ## Build the site in _build/html/
	@$(bin)/python -m sphinx -b html -q -W --keep-going -E -d _build/doctrees -c docs nbs _build/html

clean: ## Remove all that make wrote, but for learner/ and README.md
	@rm -rf .venv _build build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment: torch alone first, then an extra of setup.cfg (.venv/.dev is `.[dev]`)
.venv/.%: setup.cfg pyproject.toml constraints.txt | $(bin)/python
	@echo "Installing learner[$*] into .venv ..."
	@$(pip) torch
	@$(pip) -e '.[$*]'
	@touch $@

# Libraries to compare with. A torchvision that does not fit this torch breaks those that look for one
_build/peers/.done: bench/peers.txt constraints.txt
	@echo "Installing other libraries into _build/peers ..."
	@$(PYTHON) -m venv _build/peers
	@_build/peers/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt torch
	@_build/peers/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -r bench/peers.txt -e .
	@_build/peers/bin/python -c 'import torchvision' 2> /dev/null || \
		_build/peers/bin/python -m pip uninstall -q -y torchvision
	@touch $@

$(bin)/python:
	@$(PYTHON) -c 'import sys; v=sys.version_info; sys.exit(v<(3,11) and "learner needs Python 3.11 or newer, and `$(PYTHON)` is %d.%d: run `make PYTHON=python3.11 ...`" % v[:2])'
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }
