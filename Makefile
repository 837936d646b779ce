# make demo   set up if need be, and see a script die and go on
# make demo-cluster  and one for many cards run without any
# make test   the tests, but for those that take long: ten minutes on two cores
# make test-all  these too, half an hour
# make check  quick static checks, and the tests that a change touches
# make lint   format and static checks
# make docs   the documentation as a site, in build/site
# make bench  the benchmarks
# make sanitize  tests with PyTorch under sanitizers, half an hour
# make wheel  the wheel for all versions of PyTorch, and the source archive, in dist
# make test-versions  that wheel with each PyTorch and Python of VERSIONS, 5 GB each
# make gpu    on a machine with a GPU: what only hardware can answer
#
# PYTHON is the Python to start from, VENV the folder that everything goes into, TORCH
# what is installed where no PyTorch and GPU are at hand, JOBS how many tests run at a
# time, one more than there are cores, as some wait: each may take some GiB of memory.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 3
TORCH ?= torch==2.11.*

BIN := $(VENV)/bin
SOURCES := $(shell find csrc python setup.py pyproject.toml -type f \
	-not -name '*.so*' -not -path '*/__pycache__/*' -not -path '*.egg-info/*')

SHARED_OUT := --numprocesses $(JOBS) --dist loadgroup

VERSIONS ?= 2.10 2.11=$(VENV) 2.15 3.11:2.12 3.11:2.13 3.11:2.14 \
	3.10:2.11 3.12:2.11 3.13:2.11

.PHONY: demo demo-cluster test test-all check lint format docs bench sanitize wheel test-versions gpu clean

demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py

demo-cluster: $(VENV)/.installed
	$(BIN)/python examples/demo_cluster.py

test: $(VENV)/.installed $(VENV)/.tools
	$(BIN)/python -m pytest $(SHARED_OUT) -m "not long"

test-all: $(VENV)/.installed $(VENV)/.tools
	$(BIN)/python -m pytest $(SHARED_OUT)

check: $(VENV)/.installed $(VENV)/.tools
	tools/lint --quick
	$(BIN)/python tools/touched.py | \
		xargs $(BIN)/python -m pytest -q $(SHARED_OUT) -m "not long"

lint: $(VENV)/.tools
	tools/lint

format: $(VENV)/.tools
	tools/lint --fix

docs: $(VENV)/.tools
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

bench: $(VENV)/.installed $(VENV)/.tools
	$(BIN)/python -m pytest benchmarks

sanitize: $(VENV)/.installed $(VENV)/.tools
	$(BIN)/python tools/sanitize.py address
	$(BIN)/python tools/sanitize.py thread

wheel: $(VENV)/.torch
	$(BIN)/python -m pip install --quiet auditwheel
	$(BIN)/python tools/make_wheel.py --sdist

test-versions:
	$(BIN)/python tools/versions/try_versions.py $(VERSIONS)

# Builds with this machine's PyTorch and downloads nothing.
gpu:
	$(PYTHON) -m pip install --quiet --no-index --no-deps --no-build-isolation \
		--upgrade --target build/gpu .
	PYTHONPATH=build/gpu $(PYTHON) benchmarks/gpu.py $(GPU_ARGS)

$(VENV)/.torch:
	$(PYTHON) tools/make_venv.py $(VENV) "$(TORCH)"
	@touch $@

$(VENV)/.installed: $(VENV)/.torch $(SOURCES)
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --force-reinstall .
	@touch $@

$(VENV)/.tools: $(VENV)/.torch pyproject.toml tools/install_tools.py
	$(BIN)/python tools/install_tools.py
	@touch $@

clean:
	rm -rf build dist python/*.egg-info
