# `make` alone lists the targets.

.DEFAULT_GOAL := help
SHELL := /bin/sh
.SHELLFLAGS := -eu -c
.SUFFIXES:

# Where rustup installs cargo; PATH of a shell that is not a login shell may lack it.
CARGO_HOME ?= $(HOME)/.cargo
export PATH := $(PATH):$(CARGO_HOME)/bin

TARGET := $(or $(CARGO_TARGET_DIR),target)
PEERS := integration/bench/peers

# Every cargo command of `test` has --workspace, and the build has --tests, because cargo chooses the features of a
# dependency from everything that one command builds. A command for one package, or without the tests, chooses fewer
# (tokio without test-util), and would compile tokio and everything that depends on it again. With these flags, clippy has
# one set of artefacts, and build and test share the other; all share build scripts and macros.

# Four times as many tests at a time as there are processors: most of their time they wait for servers and for time to pass.
TEST_THREADS := $(or $(RUST_TEST_THREADS),$(shell expr 4 '*' "$$(getconf _NPROCESSORS_ONLN)"))

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: tools
tools:
	@sh scripts/ensure-tools.sh

.PHONY: test-tools
test-tools:
	@sh scripts/ensure-tools.sh --lint --examples --browser

.PHONY: lint-tools
lint-tools:
	@sh scripts/ensure-tools.sh --lint

# exec, so that signals reach the service and not a shell; `cargo run` also replaces itself with the program.
.PHONY: run
run: tools ## start everything on this machine, to try it out; Ctrl-C stops it
	@exec cargo run -p app --bin notification -- dev

# The integration tests run the service's binary, so it is built before them. The smoke run of the benchmark runs beside the
# tests and prints only if it fails, so that their summary is printed last.
.PHONY: test
test: test-tools ## everything that must pass before a change is merged: format, clippy, documentation, every test
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --features integration-tests/large -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
	cargo build --workspace --bins --tests
	@echo 'bench --smoke runs beside the tests'; \
	nice $(TARGET)/debug/bench --smoke >$(TARGET)/bench-smoke.log 2>&1 & smoke=$$!; tests=0; \
	RUST_TEST_THREADS=$(TEST_THREADS) cargo test --workspace || tests=$$?; \
	wait $$smoke || { cat $(TARGET)/bench-smoke.log; echo 'bench --smoke failed' >&2; exit 1; }; \
	exit $$tests

.PHONY: check
check: test ## the same as test

.PHONY: large-tools
large-tools:
	@sh scripts/ensure-tools.sh --lint --examples --browser --large

.PHONY: dist-tools
dist-tools:
	@sh scripts/ensure-tools.sh --dist

# Optimised, because its figures count: a debug build does not carry the traffic of the tests.
.PHONY: test-large
test-large: large-tools ## what a release needs besides: millions of rows, many minutes
	cargo build --release -p app --bin notification
	cargo test --release -p integration-tests --features large --test large -- --nocapture --test-threads=1

# What is shipped, under target/dist-artifacts. Linking the whole program at once takes many minutes.
# Needs root and debootstrap: each suite of Debian has one version of each server.
.PHONY: test-versions
test-versions: large-tools ## the tests on every PostgreSQL, Redis and Valkey of Debian's suites; needs root
	@exec sh scripts/test-versions.sh

.PHONY: fuzz-tools
fuzz-tools:
	@sh scripts/ensure-tools.sh --fuzz

# `make fuzz TARGET=json SECONDS=3600`. TARGET counts only from the command line: it is the folder of builds otherwise.
.PHONY: fuzz
fuzz: fuzz-tools ## look for input that breaks a parser, guided by coverage: TARGET=name (every one), SECONDS=60
	@exec sh scripts/fuzz.sh "$(if $(filter command,$(firstword $(origin TARGET))),$(TARGET))" "$(or $(SECONDS),60)"

.PHONY: dist
dist: dist-tools ## build what is shipped: package, binary, debug symbols, list of components, manual pages, completions, checksums
	@exec sh scripts/dist.sh

# The benchmark runs the service's binary of the same build.
.PHONY: bench-build
bench-build: tools
	cargo build --release -p app -p bench

.PHONY: bench
bench: bench-build ## measure the service against a baseline in the same run
	@exec $(TARGET)/release/bench

# It uses the build of the tests, so that nothing is compiled twice. Its figures are not comparable.
.PHONY: bench-smoke
bench-smoke: tools ## a short run of the benchmark, which only shows that it works
	cargo build --workspace --bins --tests
	@exec $(TARGET)/debug/bench --smoke

.PHONY: bench-peers
bench-peers: bench-build ## measure other queues with the same work on the same servers; installs them, needs npm
	@command -v npm >/dev/null || { echo 'npm is missing: install Node.js with npm (Debian: apt-get install nodejs npm)' >&2; exit 1; }
	cd $(PEERS) && npm ci
	@exec $(TARGET)/release/bench --only peers

# Optimised, because it runs for hours. A failing seed is printed with the command that replays it.
SEEDS ?= 1000000
.PHONY: simulate
simulate: ## the workers on simulated servers under faults, SEEDS=1000000 times
	cargo run --release -p simulation -- --seeds $(SEEDS)

# Optimised, so that thousands of cases fit into an hour. A failing case is printed with the command that replays it.
CASES ?= 2000
.PHONY: torture
torture: test-tools ## kill the program at each boundary, beside each fault of a store, CASES=2000 times; writes the table
	cargo build --release -p app --bin notification -p torture --bin torture
	@exec $(TARGET)/release/torture --cases $(CASES) --write docs/reliability.md

MINUTES ?= 60
.PHONY: soak
soak: test-tools ## a steady load beside kills and crashes, for MINUTES=60; writes its figures into docs/reliability.md
	cargo build --release -p app --bin notification -p torture --bin soak
	@exec $(TARGET)/release/soak --minutes $(MINUTES) --write docs/reliability.md

.PHONY: mutations
mutations: ## break the code on purpose, and require that the simulation finds it
	@exec sh scripts/mutations.sh

.PHONY: fmt
fmt: lint-tools ## format the code
	cargo fmt --all
