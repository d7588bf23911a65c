# Medley. `make demo` and `make test` need nothing but git, make and root (or sudo) on Debian 12.
JOBS ?= $(shell nproc)
PYTHON = .venv/bin/python

.PHONY: build demo test dist lint format kernels-bundle clean

build:            ## the CPU server: build/demo/src/apps/medley
	@tools/bootstrap build
	@cmake --preset demo >/dev/null
	@cmake --build --preset demo -j $(JOBS) --target medley

demo: build       ## base and adapters answer one ticket at the same time; ONCE=1 stops afterwards
	@python3 demo/show.py --server build/demo/src/apps/medley $(if $(ONCE),--once)

test:             ## everything this machine can test; ends with "N passed, N failed"
	@tools/bootstrap test
	@cmake --preset cuda-release >/dev/null
	@cmake --build --preset cuda-release -j $(JOBS)
	@$(PYTHON) tools/run_tests.py build/cuda-release

dist:             ## dist/medley-VERSION: one folder that runs elsewhere, on a GPU or without one
	@tools/bootstrap test
	@cmake --preset cuda-release >/dev/null
	@cmake --build --preset cuda-release -j $(JOBS) --target medley
	@tools/dist build/cuda-release/src/apps/medley

lint:             ## layers, format, clang-tidy (host files)
	@tools/lint

format:
	@git ls-files 'src/*.h' 'src/*.cc' 'src/*.cu' 'src/*.cuh' | xargs clang-format-19 -i

kernels-bundle:   ## the libraries a kernels-only build needs, as one small archive in .carry/
	@tools/kernels-bundle

clean:
	rm -rf build
