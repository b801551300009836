# Every target works in a fresh clone: it makes .venv and installs the tested versions into it.
# What cannot be installed from here (Python, Java) is checked by scripts/preflight.sh.

.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
INSTALL_INPUTS := pyproject.toml setup.cfg setup.py constraints.txt sparklog/format/kernels.c

# Spark starts its workers with the first, and looks the data source up with the second, which then runs
# each streaming query's source, too. A SPARK_HOME of another Spark would win over the installed one; the
# loopback address spares a host name look-up.
export PYSPARK_PYTHON := $(abspath $(BIN)/sparklog-python)
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
export SPARK_LOCAL_IP ?= 127.0.0.1
unexport SPARK_HOME PYTHONPATH PYTHONHOME

DEMO_OUTPUT ?= demo-output
PYTEST_ARGS ?=
CLUSTER_PORT ?= 9092
CONSOLE_PORT ?= 8080
CLUSTER_ARGS ?=
# Fifteen minutes. For hours: BROKER_ROUNDS=100; for one: CHAOS_ROUNDS=20 CHAOS_KILLS=250 CHAOS_CUTS=100 SIM_OPERATIONS=1000000 MODEL_STATES=3000000
CHAOS_ROUNDS ?= 4
CHAOS_KILLS ?= 80
BROKER_ROUNDS ?= 1
CHAOS_CUTS ?= 40
SIM_OPERATIONS ?= 40000
MODEL_STATES ?= 500000
KERNEL_ROUNDS ?= 1000000
SIM_FIRST_SEED ?= $(shell date +%s)
BENCH_ARGS ?=
FILES ?=
MINUTES ?= 15
MUTANTS_ARGS ?=
# make release: RELEASE_ARGS="--python /opt/python3.14/bin/python3.14 --aarch64 /opt/debian-arm64"
RELEASE_ARGS ?=
# make test-upgrade: the release before; empty: the last tag, or HEAD while there is none.
UPGRADE_FROM ?=
# The peers' connectors are made for one version of Spark: PEERS_PYSPARK=4.2.0 runs them beside that PySpark.
PEERS_PYSPARK ?=
# Each with the Python of .venv, or with MATRIX_PYTHON=/usr/bin/python3.13.
MATRIX_PYSPARK ?= 4.0.5 4.1.4 4.2.1 4.3.0
MATRIX_PYTHON ?=
# Emulators of object stores. fake-gcs-server 1.54 ignores the condition of some uploads.
FAKE_GCS_VERSION ?= v1.56.1
AZURITE_VERSION ?= 3.37.0
PEERS_VENV := $(if $(PEERS_PYSPARK),.venv-pyspark-$(PEERS_PYSPARK),$(VENV))

.PHONY: help demo console cluster test-fast test test-all test-matrix test-clusters check bench bench-peers compat-peers chaos mutants notebooks docs site format clean test-console test-stores test-hdfs test-upgrade check-deploy release changelog

help: ## Show the targets
	@echo "usage: make TARGET"; echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1 \2/p' $(MAKEFILE_LIST) | awk '{ line = sprintf("  %-14s", $$1); \
		for (i = 2; i <= NF; i++) { if (length(line) + length($$i) >= 80) { print line; line = sprintf("%16s", "") } \
		line = line " " $$i } print line }'

demo: $(VENV)/.demo $(if $(findstring ://,$(ROOT)),$(VENV)/.dev) ## A year of flights through the log, exactly once, while it is being killed (DEMO_OUTPUT=DIR, ROOT=s3://...)
	@sh scripts/preflight.sh --java >/dev/null
	$(BIN)/sparklog demo --output-dir "$(DEMO_OUTPUT)" $(if $(ROOT),--root "$(ROOT)")

console: $(VENV)/.dev ## The web console of a root (ROOT=DIR or s3://..., CONSOLE_PORT=8080)
	$(BIN)/sparklog console --root "$(or $(ROOT),.cluster/root)" --port $(CONSOLE_PORT)

cluster: $(VENV)/.dev ## Three brokers on one root, to play with (ROOT=DIR or s3://..., CLUSTER_PORT=9092, CLUSTER_ARGS="--brokers 5 --override k=v")
	@sh scripts/preflight.sh >/dev/null
	@$(BIN)/python scripts/cluster.py --root "$(or $(ROOT),.cluster/root)" --logs .cluster/logs --port $(CLUSTER_PORT) $(CLUSTER_ARGS)

# Each writes the 50 slowest tests to test-durations.txt.
PYTEST_ALL := $(BIN)/python -m pytest -n 2 --dist loadgroup --durations=10 --durations-file=test-durations.txt

test-fast: $(VENV)/.dev ## A minute: tests that start no process (PYTEST_ARGS="tests/format -k codec" for some)
	$(PYTEST_ALL) --level=fast $(PYTEST_ARGS)

test: $(VENV)/.dev ## Ten minutes: a test of every promise, with Spark, Kafka's clients and S3
	@sh scripts/preflight.sh --java >/dev/null
	$(PYTEST_ALL) --level=usual $(PYTEST_ARGS)

test-all: $(VENV)/.dev ## Every test, with every case
	@sh scripts/preflight.sh --java >/dev/null
	$(PYTEST_ALL) --level=all $(PYTEST_ARGS)

check: $(VENV)/.dev ## Lint, formatting, types and the layers' imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@test ! -e $(VENV)/.docs || $(MAKE) --no-print-directory site

bench: $(VENV)/.dev ## Measure encode, decode, publish and Spark throughput (BENCH_ARGS=--quick)
	@sh scripts/preflight.sh --java >/dev/null
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-peers compat-peers: export PYSPARK_PYTHON := $(abspath $(PEERS_VENV)/bin/sparklog-python)
bench-peers compat-peers: export PYSPARK_DRIVER_PYTHON := $(abspath $(PEERS_VENV)/bin/sparklog-python)

bench-peers: $(PEERS_VENV)/.dev ## Beside Apache Kafka and its Spark connector, fetched by Maven (BENCH_ARGS=--quick, PEERS_PYSPARK=4.2.0)
	@sh scripts/preflight.sh --java >/dev/null
	$(PEERS_VENV)/bin/python -m benchmarks.peers $(BENCH_ARGS)

compat-peers: $(PEERS_VENV)/.dev ## Kafka's own tools and Spark's connector against our broker, fetched by Maven
	@sh scripts/preflight.sh --java >/dev/null
	SPARKLOG_PEERS=1 $(PEERS_VENV)/bin/python -m pytest tests/peers $(PYTEST_ARGS)

# Sparks before 4.3 leave sockets to the garbage collector: that is no fault of a test.
test-matrix: ## Spark's tests on each supported Spark (MATRIX_PYSPARK="4.0.5 4.3.0")
	@sh scripts/preflight.sh --java >/dev/null
	@failed=; for version in $(MATRIX_PYSPARK); do \
		venv=.venv-pyspark-$$version$(if $(MATRIX_PYTHON),-$(notdir $(MATRIX_PYTHON))); \
		$(MAKE) --no-print-directory $$venv/.dev || exit 1; \
		echo "== PySpark $$version, $$($$venv/bin/python --version)"; \
		python="$(CURDIR)/$$venv/bin/sparklog-python"; \
		PYSPARK_PYTHON="$$python" PYSPARK_DRIVER_PYTHON="$$python" \
			$$venv/bin/python -m pytest tests/spark -W ignore::ResourceWarning \
			-W ignore::pytest.PytestUnraisableExceptionWarning $(PYTEST_ARGS) || failed="$$failed $$version"; \
	done; test -z "$$failed" || { echo "failed on PySpark$$failed"; exit 1; }

test-clusters: $(VENV)/.dev ## A standalone cluster of Spark's own processes, and what else of docs/deploy.md runs on one machine
	@sh scripts/preflight.sh --java >/dev/null
	SPARKLOG_CLUSTERS=1 $(BIN)/python -m pytest tests/clusters tests/spark/test_cluster.py $(PYTEST_ARGS)

# Elsewhere the tests of the browser are skipped without these; SPARKLOG_CHROMIUM names another Chromium.
test-console: $(VENV)/.dev ## Every page of the web console in a real Chromium (Debian's package chromium)
	@test -x "$${SPARKLOG_CHROMIUM:-/usr/bin/chromium}" || apt-get install -y --no-install-recommends chromium || \
		{ echo "There is no Chromium: apt-get install chromium, or set SPARKLOG_CHROMIUM"; exit 1; }
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[browser]"
	$(BIN)/python -m pytest tests/browser tests/console $(PYTEST_ARGS)

# Hadoop's MiniDFSCluster: a NameNode and two DataNodes in one JVM.
test-hdfs: $(VENV)/.dev $(VENV)/hadoop ## hdfs:// on a real NameNode, from Maven (ten minutes)
	@sh scripts/preflight.sh --java >/dev/null
	SPARKLOG_STORES=1 $(BIN)/python -m pytest -n 0 tests/storage/test_base_contract.py tests/storage/test_base_walk.py \
		tests/storage/test_hdfs_server.py tests/crash/test_matrix.py tests/spark/test_roots_buckets.py -k hdfs $(PYTEST_ARGS)
	SPARKLOG_HISTORY_SECONDS=20 SPARKLOG_TEST_STORE=hdfs \
		$(BIN)/python -m pytest -n 2 tests/log tests/client tests/history/test_processes.py $(PYTEST_ARGS)

$(VENV)/hadoop: | $(VENV)/.dev
	mvn -q -B -f tests/storage/hadoop.xml dependency:copy-dependencies -DoutputDirectory=$(abspath $@).new && mv $@.new $@

test-stores: $(VENV)/.dev $(BIN)/fake-gcs-server $(VENV)/azurite ## gs:// and az:// on emulators, built with Go and npm (half an hour)
	@sh scripts/preflight.sh --java >/dev/null
	SPARKLOG_STORES=1 $(BIN)/python -m pytest tests/storage/test_base_contract.py tests/storage/test_base_walk.py \
		tests/storage/test_rest_client_faults.py tests/crash/test_matrix.py tests/spark/test_roots_buckets.py \
		-k "gs or azure" $(PYTEST_ARGS)
	for store in gs azure; do SPARKLOG_HISTORY_SECONDS=20 SPARKLOG_TEST_STORE=$$store \
		$(BIN)/python -m pytest -n 2 tests/log tests/client tests/history/test_processes.py $(PYTEST_ARGS) || exit 1; done

$(BIN)/fake-gcs-server: | $(VENV)/.dev
	GOBIN="$(abspath $(BIN))" go install github.com/fsouza/fake-gcs-server@$(FAKE_GCS_VERSION)

$(VENV)/azurite: | $(VENV)/.dev
	npm install --no-audit --no-fund --prefix $@.new azurite@$(AZURITE_VERSION) && mv $@.new $@

test-upgrade: $(VENV)/.dev .venv-release/.tools ## Programs of the last release and of this tree on one root, upgrading and rolling back (UPGRADE_FROM=v0.1.0)
	.venv-release/bin/python -m scripts.release.older .venv-upgrade-older $(if $(UPGRADE_FROM),--commit $(UPGRADE_FROM))
	SPARKLOG_OLDER_PYTHON="$(CURDIR)/.venv-upgrade-older/bin/python" $(BIN)/python -m pytest -n 0 tests/upgrade $(PYTEST_ARGS)

chaos: $(VENV)/.dev ## The crash tests, fifteen minutes of them, and a report (longer: CHAOS_ROUNDS, BROKER_ROUNDS, CHAOS_KILLS, CHAOS_CUTS, SIM_OPERATIONS, MODEL_STATES, KERNEL_ROUNDS)
	@sh scripts/preflight.sh --java >/dev/null
	SPARKLOG_CHAOS_ROUNDS=$(CHAOS_ROUNDS) SPARKLOG_BROKER_ROUNDS=$(BROKER_ROUNDS) SPARKLOG_SOAK_SECONDS=15 SPARKLOG_FUZZ_FRAMES=100000 \
		SPARKLOG_CHAOS_KILLS=$(CHAOS_KILLS) SPARKLOG_CHAOS_CUTS=$(CHAOS_CUTS) SPARKLOG_HISTORY_SECONDS=30 \
		SPARKLOG_MODEL_STATES=$(MODEL_STATES) SPARKLOG_KERNEL_ROUNDS=$(KERNEL_ROUNDS) \
		SPARKLOG_SIM_OPERATIONS=$(SIM_OPERATIONS) SPARKLOG_SIM_FIRST_SEED=$(SIM_FIRST_SEED) \
		SPARKLOG_SIM_JOBS=$$(nproc 2>/dev/null || echo 1) \
		$(BIN)/python -m pytest --timeout=3600 tests/crash tests/brokers tests/compat/test_broker_hostile.py tests/format/test_kernels_fuzz.py \
		tests/history tests/simulation tests/models $(PYTEST_ARGS)

mutants: $(VENV)/.dev ## Mutants of the changed files that no test notices (FILES="sparklog/format/codec.py ...", MINUTES=15, MUTANTS_ARGS=--rules)
	$(BIN)/python -m pip install -q -c constraints.txt cosmic-ray==8.7.0
	$(BIN)/python -m scripts.mutants --minutes $(MINUTES) $(FILES) $(MUTANTS_ARGS)

notebooks: $(VENV)/.dev ## Execute the notebooks and save their outputs
	@sh scripts/preflight.sh --java >/dev/null
	$(BIN)/python scripts/run_notebooks.py

docs: $(VENV)/.dev ## Write the reference pages of docs/ from the declarations in the code
	$(BIN)/python scripts/generate_docs.py

site: $(VENV)/.docs ## Build the documentation as a site (build/site/index.html); warnings are errors
	$(BIN)/sphinx-build -q -W --keep-going -d build/doctrees -c docs . build/site
	@echo "build/site/index.html"

release: .venv-release/.tools ## Build the packages into dist/, check and install them, and stop before publishing (RELEASE_ARGS=--allow-changes)
	@sh scripts/preflight.sh --java >/dev/null
	.venv-release/bin/python -m scripts.release $(RELEASE_ARGS)

# The unit's program is not installed here: systemd would say no more than that.
check-deploy: .venv-release/.tools ## Lint what deploy/ has: the image, the manifests, and the service where systemd is installed
	.venv-release/bin/hadolint deploy/docker/Dockerfile
	.venv-release/bin/kubernetes-validate --strict --quiet deploy/kubernetes/*.yaml
	@if command -v systemd-analyze >/dev/null; then unit=$$(mktemp -d)/sparklog-server.service; \
		sed 's#^ExecStart=[^ ]*#ExecStart=/bin/true#' deploy/systemd/sparklog-server.service > "$$unit"; \
		systemd-analyze verify "$$unit" && systemd-analyze security --offline=yes --threshold=25 "$$unit" | tail -n 1; \
	else echo "systemd-analyze is not installed: the service is not checked"; fi

changelog: .venv-release/.tools ## Move the fragments of changelog.d/ into CHANGELOG.md, under the version of pyproject.toml
	.venv-release/bin/towncrier build --yes --version "$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)"

format: $(VENV)/.dev ## Format the code and apply the safe lint fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the environment, caches and outputs
	rm -rf $(VENV) .venv-pyspark-* .venv-release .venv-upgrade-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache spark-warehouse .cluster demo-output bench-output sparklog/format/_kernels.so

# The stamps say which extra is installed from which inputs; [dev] includes [demo].
$(VENV)/.dev: $(INSTALL_INPUTS)
	@sh scripts/preflight.sh >/dev/null
	@$(MAKE) --no-print-directory install EXTRA=dev
	@touch $(VENV)/.demo $@

$(VENV)/.demo: $(INSTALL_INPUTS)
	@sh scripts/preflight.sh --java >/dev/null
	@if [ -f $(VENV)/.dev ]; then $(MAKE) --no-print-directory $(VENV)/.dev; \
	else $(MAKE) --no-print-directory install EXTRA=demo; fi
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	@$(MAKE) --no-print-directory install EXTRA=docs
	@touch $@

.venv-pyspark-%/.dev: $(INSTALL_INPUTS)
	@echo "Installing sparklog[dev] with PySpark $(firstword $(subst -, ,$*)) into $(@D)."
	@test -x $(@D)/bin/python || "$(or $(MATRIX_PYTHON),$$(sh scripts/preflight.sh))" -m venv $(@D)
	grep -v '^pyspark==' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --disable-pip-version-check -c $(@D)/constraints.txt -e ".[dev]" "pyspark[connect]==$(firstword $(subst -, ,$*))"
	@touch $@

.venv-release/.tools: scripts/release/requirements.txt
	@test -x .venv-release/bin/python || "$$(sh scripts/preflight.sh)" -m venv .venv-release
	.venv-release/bin/python -m pip install --disable-pip-version-check -q -r scripts/release/requirements.txt
	@touch $@

.PHONY: install
install:
	@echo "Installing sparklog[$(EXTRA)] into $(VENV); the first time takes some minutes (Spark is large)."
	@test -x $(BIN)/python || "$$(sh scripts/preflight.sh)" -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[$(EXTRA)]"
