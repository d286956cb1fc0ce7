# Penstock. `make` alone explains; `make demo` and `make test` are the two commands to know.
# Everything made lies in build/ and .venv/ of this checkout.

SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
export CCACHE_DIR := $(CURDIR)/build/.ccache

.PHONY: help setup check build python wheels docs demo test test-ci test-python test-long bench gpu-kit test-gpu fresh format lint tidy clean setup-base setup-test setup-ci

help: ## this page
	@echo "Penstock moves tensors between storage and memory at the speed of the device."
	@echo
	@echo "  make demo    see it work here: what this disk can do, and what Penstock gets out of it"
	@echo "  make test    what must hold, in one command"
	@echo
	@echo "Both set up what they need (Debian packages as root or with sudo, a Python environment in .venv)."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "One preset by hand:   cmake --preset dev && cmake --build --preset dev && ctest --preset dev"
	@echo "One part of the test: .venv/bin/python tools/run_tests.py --only asan-ubsan   (--list shows all)"

setup: setup-ci ## packages and environments for everything but test-long

setup-base:
	@tools/setup.sh base
setup-test:
	@tools/setup.sh test
setup-ci:
	@tools/setup.sh ci

build: setup-base ## the library and the `penstock` program, in build/program
	@$(PY) tools/build.py program
	@echo "built: build/program/src/libpenstock.so and build/program/bin/penstock"

python: setup-base ## the Python package, built and installed into .venv
	@$(PY) tools/build_wheel.py

wheels: setup-test ## wheels for others, in build/dist: 3.10, 3.11, and one for 3.12 and later
	@$(PY) tools/make_wheels.py

smoke: ## the set-up and the package, built quickly and tried: without torch, minutes
	@tools/setup.sh build
	@$(PY) tools/build_wheel.py --quick
	@cd build && ../$(PY) ../tools/smoke.py

docs: python ## the site of the documents, in build/docs/html; links are checked
	@$(PY) tools/make_docs.py

demo: python ## two minutes: this disk, Penstock compared with fio and torch.save, GPT-2 small there and back
	@$(PY) tools/demo.py

# When the command began: the set-up counts.
BEGAN := $(shell date +%s)

test: setup-test ## checks and tests, quick ones; the last line counts them
	@$(PY) tools/run_tests.py --began $(BEGAN) $(TEST_ARGS)

test-ci: setup-ci ## test, then DeepSpeed, the docs, sanitizers and searches: what .ci/run runs
	@$(PY) tools/run_tests.py --level ci --began $(BEGAN) $(TEST_ARGS)

test-python: setup-base ## the package and its tests alone; also on another Debian, with another Python
	@$(PY) tools/run_tests.py --only python --budget-scale 3

test-long: ## test-ci, then clang-tidy, fuzzers, many seeds, bars against their handicaps, a fresh Debian
	@tools/setup.sh long
	@$(PY) tools/run_tests.py --level long --began $(BEGAN) $(TEST_ARGS)

# What the rows of benchmarks/bars.toml run; the tests of the same build are left out.
BENCH_TARGETS := penstock_bench_ours penstock_bench_model penstock_exe fake_cuda fake_cufile

bench: ## benchmarks against their bars: make bench IDS="engine.read_1g engine.cpu" (none: the list)
	@tools/setup.sh bench
	@$(PY) tools/build.py release -DPENSTOCK_BENCHMARKS=ON $(BENCH_TARGETS)
	@$(PY) tools/build_wheel.py
	@$(PY) -m benchmarks $(if $(IDS),$(IDS),--list)

gpu-kit: ## what a machine with a GPU needs for test-gpu, in build/gpu-kit.tar.gz
	@tools/setup.sh bench
	@$(PY) tools/build.py release -DPENSTOCK_BENCHMARKS=ON device_conformance_test suite_test device_test features_test penstock_bench_ours
	@$(PY) tools/build_wheel.py
	@$(PY) tools/make_gpu_kit.py

test-gpu: ## suite, conformance and bars on a GPU, in 8 minutes at most; without a GPU it says so
	@$(PY) tools/test_gpu.py

fresh: ## the two commands in a Debian 12 with nothing in it but git and make (root)
	@tools/fresh.sh

format: setup-test ## lay out all C++ and Python
	@$(PY) tools/check_tidy.py --fix

check: ## the tests of what changed since the last commit, in about a minute after a build
	@$(PY) tools/quick_check.py

lint: setup-test ## the quick checks: layers, layout, words, headers
	@$(PY) tools/check_layers.py
	@$(PY) tools/check_types.py
	@$(PY) tools/check_imports.py
	@$(PY) tools/check_tidy.py
	@$(PY) tools/check_headers.py

tidy: ## clang-tidy over everything (minutes)
	@tools/setup.sh long
	@$(PY) tools/run_clang_tidy.py

clean: ## remove build/; .venv/ stays (rm -r it to be rid of it)
	rm -rf build
