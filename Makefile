# `make` alone lists the targets.

.DEFAULT_GOAL := help
SHELL := /bin/sh
.SHELLFLAGS := -eu -c
.SUFFIXES:

# Where rustup puts cargo; a shell that is no login shell may not know.
CARGO_HOME ?= $(HOME)/.cargo
export PATH := $(PATH):$(CARGO_HOME)/bin

TARGET := $(or $(CARGO_TARGET_DIR),target)
PEERS := integration/bench/peers

# Why everything under `test` says --workspace, and the build --tests: cargo chooses the features of a dependency from
# all that one command builds. A command for one package, or without the tests, chooses fewer (tokio without test-util),
# and tokio with all that stands on it is compiled once more. Like this clippy has one set of artefacts, and build and
# test share the other; build scripts and macros are shared by all.

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: tools
tools:
	@sh scripts/ensure-tools.sh

.PHONY: lint-tools
lint-tools:
	@sh scripts/ensure-tools.sh --lint

# exec, so that no shell stands between a signal and the service; cargo gives its place up to it as well.
.PHONY: run
run: tools ## start everything on this machine, to try things out; Ctrl-C ends it
	@exec cargo run -p app --bin notification -- dev

# The integration tests run the service's binary, so it is built before any of them. The benchmark, run small, comes before
# the tests, whose summary is to be the last word.
.PHONY: test
test: lint-tools ## all that must pass before a change goes in: format, clippy, documentation, every test
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
	cargo build --workspace --bins --tests
	$(TARGET)/debug/bench --smoke
	cargo test --workspace

.PHONY: check
check: test ## the same as test

# The benchmark runs the service's binary of the same build.
.PHONY: bench-build
bench-build: tools
	cargo build --release -p app -p bench

.PHONY: bench
bench: bench-build ## what the service costs, against a ceiling measured in the same run
	@exec $(TARGET)/release/bench

# Of the build that the tests use, so that it costs them no second one. Its figures judge nothing.
.PHONY: bench-smoke
bench-smoke: tools ## a short run of the benchmark that only shows that it works
	cargo build --workspace --bins --tests
	@exec $(TARGET)/debug/bench --smoke

.PHONY: bench-peers
bench-peers: bench-build ## other queues doing the same work on the same servers; installs them, needs npm
	@command -v npm >/dev/null || { echo 'npm is missing: install Node.js with npm (Debian: apt-get install nodejs npm)' >&2; exit 1; }
	cd $(PEERS) && npm ci
	@exec $(TARGET)/release/bench --only peers

.PHONY: fmt
fmt: lint-tools ## format the code
	cargo fmt --all
