# `make demo` and `make test` set up everything they need, in .venv, from requirements.lock.
PYTHON ?= python3
BIN := .venv/bin
PACKAGES := onsight-lint onsight-explain
OURS := --editable . $(PACKAGES:%=--editable packages/%)
unexport PYTHONDONTWRITEBYTECODE # without bytecode, each process that a test starts compiles it all

.PHONY: demo test test-portable test-portable-one setup lint types imports unit soak soak-tests weather \
	soak-parallel soak-alone reliability api-fuzz \
	browser docs docs-check format lock wheels pre-commit-mirror sbom audit release-check try-wheels notebooks screenshots \
	gpu-check gpu-check-short clean bench bench-full bench-gpu bench-smoke compare compare-full

demo: setup  ## train on the images inside the package and write a report
	$(BIN)/onsight train demo

test: lint types imports unit  ## everything that must hold before a change lands

setup: .venv/installed

# $(call install_lock,ENVIRONMENT): uv is several times as fast as pip, but does not read pip.conf, which
# may name the only index that you can reach; pip takes over if uv fails.
install_lock = ($(1)/bin/pip install --quiet --disable-pip-version-check --require-hashes \
	-r scripts/requirements-setup.txt && $(1)/bin/uv pip install --system-certs \
	--python $(1)/bin/python --require-hashes -r requirements.lock) || \
	$(1)/bin/pip install --disable-pip-version-check --require-hashes -r requirements.lock

.venv/installed: requirements.lock scripts/requirements-setup.txt pyproject.toml hatch_build.py $(PACKAGES:%=packages/%/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Onsight needs Python 3.11 or later; name one by: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 2; }
	@echo "1 of 3: a new environment, .venv"
	@$(PYTHON) -m venv .venv
	@echo "2 of 3: the packages of requirements.lock: about a minute on a fast connection, 6.6 GB on disk"
	@$(call install_lock,.venv)
	@echo "3 of 3: Onsight itself"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps $(OURS)
	@touch $@
	@echo "To use the command onsight in this shell: . .venv/bin/activate"

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy --num-workers auto

imports: setup
	$(BIN)/lint-imports

unit: setup
	$(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist worksteal --durations 20

test-portable: setup  ## the tests that compute, with other kernels, threads and weights: about an hour
	$(BIN)/python scripts/test_portable.py

COMMIT ?= $(shell git rev-parse HEAD)

test-portable-one: setup  ## a share of them in one of these ways, chosen by the hash of COMMIT
	$(BIN)/python scripts/test_portable.py --one $(COMMIT)

# These measure seconds or memory, or start processes on both cores: one at a time.
SOAK_ALONE := $(addprefix soak/test_,bomb_files.py default_memory.py lost_machine.py lost_ranks.py \
	rank_count.py ray.py ray_client.py serve.py sweep_on_ray.py)

compare: setup  ## what the working tree does against the baseline commit: some minutes
	$(BIN)/python scripts/compare.py

compare-full: setup  ## the same with every scenario
	$(BIN)/python scripts/compare.py --full

soak: soak-tests test-portable reliability weather soak-parallel soak-alone api-fuzz  ## every long proof, about two hours; -k goes on after a failure

soak-tests: setup  ## the long proofs among the tests
	$(BIN)/pytest -m soak -n 2 --dist worksteal --timeout 3600 -rP

weather: setup  ## 200 runs in random circumstances: other load, caches, commands, disks, kills
	$(BIN)/python soak/weather.py --rounds 200

soak-parallel: setup  ## planted bugs, 100,000 mutated images, Pillow's own
	$(BIN)/pytest soak $(addprefix --ignore=,$(SOAK_ALONE)) -n 2 --timeout 3600 -rP

soak-alone: setup .venv-soak/installed  ## bombs, a server under attack, lost ranks and machines, Ray
	.venv-soak/bin/python -m pytest $(SOAK_ALONE) --timeout 3600 -rP

# Ray beside the packages of .venv, which stays as it is.
.venv-soak/installed: .venv/installed
	$(PYTHON) -m venv .venv-soak
	cd .venv-soak/lib/python*/site-packages && $(CURDIR)/$(BIN)/python -c 'import sysconfig; \
		print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' > venv.pth
	.venv-soak/bin/pip install --quiet --disable-pip-version-check 'ray[data,serve,train,tune]>=2.60,<3'
	@touch $@

reliability: setup  ## kills, signals, damage and full disks in the counts of docs/reliability.md
	RELIABILITY=full $(BIN)/pytest tests/reliability -n 2 --dist worksteal --timeout 3600 -rP

.venv-fuzz/installed: soak/requirements-api-fuzz.txt
	$(PYTHON) -m venv .venv-fuzz
	.venv-fuzz/bin/pip install --quiet --disable-pip-version-check -r soak/requirements-api-fuzz.txt
	@touch $@

api-fuzz: setup .venv-fuzz/installed  ## some thousand made-up requests to every URL of the server
	$(BIN)/python soak/api_fuzz.py .venv-fuzz/bin/schemathesis

browser: setup  ## the page of `onsight serve` in a real browser; needs Chromium
	$(BIN)/pip install --quiet --disable-pip-version-check -r tests/browser/requirements.txt
	$(BIN)/pytest tests/browser -rs

docs: setup  ## the documentation, into site/
	$(BIN)/python scripts/docs/build.py

docs-check: docs  ## the same, and every block, command, link and notebook of it
	$(BIN)/pytest tests/docs -m docs --numprocesses auto --maxprocesses 2 --dist worksteal --durations 10

format: setup  ## format every file
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

LOCK := $(BIN)/uv pip compile --universal --generate-hashes --no-header --quiet --upgrade

lock: setup  ## choose the newest versions that the packages allow
	$(LOCK) pyproject.toml --group dev --group docs --extra all --python-version 3.11 \
		$(addprefix --no-emit-package ,$(PACKAGES)) --output-file requirements.lock
	echo uv | $(LOCK) - --output-file scripts/requirements-setup.txt

RELEASE := .venv-release/bin

.venv-release/installed: scripts/requirements-release.txt
	$(PYTHON) -m venv .venv-release
	$(RELEASE)/pip install --quiet --disable-pip-version-check -r scripts/requirements-release.txt
	@touch $@

pre-commit-mirror: setup  ## a repository for pre-commit that installs onsight-lint alone
	$(BIN)/python scripts/pre_commit_mirror.py

wheels: .venv-release/installed  ## the wheels of all packages, into dist/
	for project in . $(addprefix packages/,$(PACKAGES) onsight-run); do \
		ONSIGHT_RELEASE=1 $(RELEASE)/python -m build --wheel --no-isolation --outdir dist $$project \
			|| exit; \
	done

sbom: .venv-release/installed  ## what is inside: dist/onsight.cdx.json, in CycloneDX's form
	@mkdir -p dist
	$(RELEASE)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
		--validate --output-file dist/onsight.cdx.json requirements.lock

audit: .venv-release/installed  ## whether weaknesses of the locked packages are known; asks the network
	$(RELEASE)/python scripts/audit.py $(RELEASE)/pip-audit

release-check: setup .venv-release/installed  ## wheels of git's tree, twice the same; lock, import, SBOM, audit; TAG=v1.2.3
	$(BIN)/pytest $(addprefix tests/test_,distributions.py supply_chain.py release_check.py run_package.py)
	$(RELEASE)/python scripts/release_check.py $(if $(TAG),--tag $(TAG))
	$(MAKE) sbom
	$(MAKE) audit

try-wheels: wheels  ## each wheel in a clean environment; torch is downloaded twice
	$(PYTHON) scripts/try_wheels.py dist

notebooks: setup  ## run the notebooks of the documentation and store their outputs
	$(BIN)/python scripts/notebooks.py

screenshots: setup  ## the pictures in docs/images, from real runs; needs Chromium and an idle machine
	$(BIN)/pip install --quiet --disable-pip-version-check -r tests/browser/requirements.txt
	$(BIN)/python scripts/screenshots.py

gpu-check: setup  ## everything that depends on a GPU, on it; without one, on the simulated device
	$(BIN)/python scripts/gpu_check.py

gpu-check-short: setup  ## a few steps of it
	$(BIN)/python scripts/gpu_check.py --short

# Benchmarks write benchmarks/RESULTS.md. Run nothing else at the same time.
FASHION ?= /usr/share/datasets/fashion-mnist
SETS ?= .bench-sets
CONTENDERS := auto sprint compact head tuned fastai torchvision sklearn ultralytics
BENCH := .venv-bench/bin/python benchmarks

.venv-bench/installed: requirements.lock scripts/requirements-setup.txt benchmarks/requirements.txt pyproject.toml packages/onsight-lint/pyproject.toml
	$(PYTHON) -m venv .venv-bench
	$(call install_lock,.venv-bench)
	.venv-bench/bin/pip install --quiet --disable-pip-version-check -r benchmarks/requirements.txt
	.venv-bench/bin/pip install --quiet --disable-pip-version-check --no-deps $(OURS)
	@touch $@

bench: .venv-bench/installed  ## every benchmark with few rounds: about half an hour
	$(BENCH)/lenet_step.py $(FASHION) --rounds 3 --seconds 3
	$(BENCH)/decode_photos.py --rounds 3
	$(BENCH)/startup.py $(FASHION) --rounds 3
	$(BENCH)/plan_choice.py --rounds 3
	$(BENCH)/budgets.py $(FASHION) --models compact --budgets 30 --runs 3 --load
	$(BENCH)/explain_cost.py
	$(BENCH)/image_sets.py wallpapers $(SETS)
	$(BENCH)/auto.py $(SETS) --sets wallpaper-cells-60-20 --budgets 60 --seeds 1 --contenders $(CONTENDERS) --out $(SETS)/auto.jsonl
	$(BENCH)/auto.py --summary $(SETS)/auto.jsonl
	$(BENCH)/serve_load.py

bench-full: .venv-bench/installed  ## all rounds and all sizes: several hours
	$(BENCH)/lenet_step.py $(FASHION)
	$(BENCH)/decode_photos.py --full
	$(BENCH)/startup.py $(FASHION) --full
	$(BENCH)/plan_choice.py
	$(BENCH)/plan_choice.py --load
	$(BENCH)/budgets.py
	$(BENCH)/budgets.py $(FASHION) --models compact --budgets 30,60,300 --runs 10 --load
	$(BENCH)/explain_planted.py
	$(BENCH)/image_sets.py clip-art $(SETS)
	$(BENCH)/image_sets.py wallpapers $(SETS)
	$(BENCH)/auto.py $(SETS) --sets clip-art wallpaper-cells-60-20 --contenders $(CONTENDERS) --out $(SETS)/auto.jsonl
	$(BENCH)/auto.py --summary $(SETS)/auto.jsonl
	$(BENCH)/check_planted.py $(SETS)/wallpaper-cells-60-20
	$(BENCH)/near_duplicate_growth.py
	$(BENCH)/folds_coverage.py --first 40
	$(BENCH)/out_of_distribution.py $(FASHION) $(SETS)/clip-art $(SETS)/unlike
	$(BENCH)/ranks_scaling.py $(FASHION)
	$(BENCH)/shards.py web --images 20000 --rounds 4 --shard-images 500

bench-gpu: .venv-bench/installed  ## on a machine with a CUDA GPU
	$(BENCH)/card.py
	$(BENCH)/gpu.py
	$(BENCH)/explain_planted.py --only pageable_copies

bench-smoke: setup  ## every benchmark with its smallest settings, to see that it runs
	$(BIN)/python benchmarks/smoke.py

clean:
	rm -rf .docs site .venv .venv-bench .venv-fuzz .venv-release .venv-soak .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
