# A fresh Debian or Ubuntu needs nothing but root, apt and a Python package registry. Long steps live in .ci/.
.DEFAULT_GOAL := help
.PHONY: help setup engines engines-local engines-docker engines-apptainer engines-criu engines-registry engines-browser train learn learn-real learn-context learn-starts policy test test-all bench docs check fmt lock harbor-table newest mutants verl clean

PY := .venv/bin/python
INSTALLED := .venv/.installed

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 18

$(INSTALLED): .requirements/all.txt .requirements/overrides.txt pyproject.toml
	.ci/setup.sh
	@touch $@

setup: $(INSTALLED) ## Make .venv with every pinned package (PYTHON= names an interpreter)

engines-local: setup ## Install what the local sandbox needs; make its base images where no registry answers
	.ci/engines.sh local

engines-docker: ## Install Docker with Compose v2 and start it where nothing else does
	.ci/engines.sh docker

engines-apptainer: ## Unpack Apptainer into build/engines where it is not installed
	.ci/engines.sh apptainer

engines-criu: ## Unpack CRIU, which copies processes, into build/engines where it is not installed
	.ci/engines.sh criu

engines-registry: ## Unpack a registry of images into build/engines where it is not installed, for tests
	.ci/engines.sh registry

engines-browser: ## Install Chromium, for the tests of the page
	.ci/engines.sh browser

engines: engines-local engines-docker engines-apptainer engines-criu engines-registry engines-browser ## All of the above

train: setup engines-local ## Train on tasks/devops_task here, on the CPU (ARGS= adds flags)
	.venv/bin/harbor-gym train --task-dir tasks/devops_task --env local --backend local --zero-reward-on-limit $(ARGS)

learn: setup engines-local ## Show that it learns: 3 learning rates x 3 seeds here, hours; a table and a figure (ARGS= adds flags)
	.venv/bin/harbor-gym sweep --task-dir tasks/devops_task --sweep-path runs/learn --env local --backend local \
		--num-batches 25 --save-every 5 --zero-reward-on-limit $(ARGS)

learn-real: setup engines-local ## Show that a pretrained model learns: fine-tuned, then trained, 3 seeds, hours; a table (ARGS= adds flags of train)
	.venv/bin/python .ci/learn_real.py $(ARGS)

learn-context: setup engines-local ## Compare ways to treat a full context, 3 seeds each, an hour or two; a table and a figure (ARGS= adds flags of sweep)
	.venv/bin/python .ci/learn_context.py $(ARGS)

learn-starts: setup engines-local ## Compare where episodes begin, 3 seeds each, an hour; a table and a figure (ARGS= adds flags of sweep)
	.venv/bin/python .ci/learn_starts.py $(ARGS)

policy: setup engines-local ## Make the policy anew that is shipped for tasks/devops_task
	.venv/bin/python .ci/policy.py tasks/devops_task

test: setup engines-local ## Run unit and contract tests and one real episode through each door (ARGS= adds pytest's flags)
	.ci/test.sh -m 'not slow' @tests/short.txt $(ARGS)

test-all: setup engines-local ## Run every test, those on Docker where it is available (ARGS= adds pytest's flags)
	.ci/test.sh $(ARGS)

verl: setup engines-local ## Test the verl adapter in an environment of its own, 5 GB (ARGS= adds pytest's flags)
	.ci/verl/test.sh $(ARGS)

bench: setup ## Measure steps, resets, episodes and more (ARGS="step --env local"; ARGS=--help lists them)
	@.venv/bin/python -m tests.benchmarks $(ARGS)

docs: setup ## Build the site into build/site, strictly: no broken link
	.ci/docs/build.sh

check: setup ## Lint, format check, types, shell scripts, leaked addresses
	.ci/check.sh

fmt: setup ## Format and fix what can be fixed
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

lock: setup ## Pin every package anew (ARGS=--upgrade moves them to the newest)
	.ci/lock.sh $(ARGS)

harbor-table: setup ## Ask the resolver which extra fits beside which Harbor, and write the docs' table
	$(PY) .ci/harbor_newest/table.py

newest: setup ## Install every extra's newest releases apart, run its tests and write the docs' table (ARGS="trl skyrl"); an hour
	$(PY) .ci/harbor_newest/newest.py $(ARGS)

mutants: setup ## See which changes of the core no test notices (MODULES="pool rewards"; all take hours, MUTANTS_SAMPLE=60 minutes)
	.ci/mutants/run.sh $(MODULES)

clean: ## Remove .venv and caches; runs/ and trials/ stay
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist
