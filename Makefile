# What developers and CI run. `make` or `make help` prints the list; .ci/run calls `make ci`.
#
# Every target compiles with the same flags, so that they share one build cache: without cgo, which makes the
# binary static, and without paths of this machine, which makes it reproducible. Only the race detector needs cgo.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-print-directory
.DEFAULT_GOAL := help

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -s -w -X main.version=$(VERSION)

export CGO_ENABLED := 0
export GOFLAGS     := $(strip $(filter-out -trimpath -buildvcs=%,$(shell $(GO) env GOFLAGS)) -trimpath -buildvcs=false)

BIN     := bin/weir
SOURCES := events jetstream schemas services
SIM     := ./services/internal/sim
GATE    := ./services/approval
INTEROP := services/cmd/weir/interop
TOOL    := $(GO) tool -modfile=.tools/go.mod
LINT    := $(GO) tool -modfile=.tools/lint/go.mod golangci-lint

# The simulation (services/internal/sim) takes two flags of its own:
#   -weir.seeds int    how many seeds to run     (default: what `make test` can afford)
#   -weir.seed  int64  the first of them; the others follow it one by one
# Its races take -weir.rounds and -weir.rounds3 (on three replicas); the tests that kill processes (services/cmd/weir)
# take -weir.kills and -weir.suspended. -weir.deadlines is how many asks come to their deadline at once.
# A failing seed N is replayed by: make soak SEED=N SEEDS=1
SEEDS      ?= 100000
SEED       ?= $(shell date +%s)
RACE_SEEDS ?= 60
ROUNDS     ?= 20
FUZZTIME   ?= 30s
RUNS       ?= 2000

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the static binary bin/weir
	$(GO) build -ldflags '$(LDFLAGS)' -o $(BIN) ./services/cmd/weir

.PHONY: run
run: build ## Run the demo: a refund that waits for approval (ends by itself)
	$(BIN) demo

.PHONY: dev
dev: build ## Run everything in one process on an embedded NATS server
	$(BIN) dev

# Stores of tests lie in memory where the system has 4 GiB of it to spare for files; elsewhere tests take a quarter longer.
STORES := $(shell [ -w /dev/shm ] && df -Pk /dev/shm | awk 'NR == 2 && $$4 > 4194304 { print "/dev/shm" }')
test race: export GOTMPDIR := $(or $(GOTMPDIR),$(TMPDIR),/tmp)
test race: export TMPDIR := $(or $(STORES),$(TMPDIR),/tmp)

.PHONY: test
test: ## Run all tests; needs Go alone
	$(GO) test -count=1 -timeout 40m ./...

.PHONY: race
race: export CGO_ENABLED := 1
race: ## Run all tests under the race detector, shuffled; fewer simulation seeds
	$(GO) test -race -shuffle=on -count=1 -timeout 45m $$($(GO) list ./... | grep -vE '($(SIM:.%=%)|$(GATE:.%=%))$$')
	$(GO) test -race -shuffle=on -count=1 -timeout 45m $(GATE) -weir.model=$(RACE_SEEDS)
	$(GO) test -race -shuffle=on -count=1 -timeout 45m $(SIM) -weir.seeds=100 -weir.rounds=$(RACE_SEEDS) \
		-weir.killed=$(RACE_SEEDS) -weir.forged=$(RACE_SEEDS)0 -weir.deadlines=$(RACE_SEEDS) -weir.rounds3=10 -weir.held=30

.PHONY: lint
lint: ## Run the linters of .golangci.yaml
	$(LINT) run --build-tags=interop ./...

.PHONY: fmt
fmt: ## Format the code as lint wants it
	$(LINT) fmt $(SOURCES)

.PHONY: generate
generate: ## Write the generated files again: schemas, tables in documents
	$(GO) generate ./...

.PHONY: verify
verify: ## Check go.mod, formatting, vet and that generated files are current
	$(GO) mod tidy -diff
	@files=$$($(TOOL) gofumpt -l $(SOURCES)); \
	if [ -n "$$files" ]; then echo "not formatted, run make fmt:"; echo "$$files"; exit 1; fi
	$(GO) vet -tags=interop ./...
	@state() { git status --porcelain; git diff; }; \
	before=$$(state); $(MAKE) generate; \
	if [ "$$before" != "$$(state)" ]; then git status --short; echo "make generate changed files: commit them"; exit 1; fi

.PHONY: interop
interop: ## Run the tests with foreign clients (npm, the nats command line, jq, openssl)
	npm ci --prefix $(INTEROP) --no-audit --no-fund
	$(GO) build -modfile=.tools/nats/go.mod -o .tools/bin/nats github.com/nats-io/natscli/nats
	@files=$$(grep -rlE --include='*_test.go' '^//go:build .*interop' $(SOURCES)); \
	tests=$$(sed -nE 's/^func (Test[A-Za-z0-9_]+)\(.*/\1/p' $$files | paste -s -d '|' -); \
	$(GO) test -tags=interop -count=1 -timeout 10m -run "^($$tests)$$" $$(dirname $$files | sort -u | sed 's|^|./|')

.PHONY: conformance
conformance: export WEIR := $(abspath $(BIN))
conformance: build ## Run the MCP conformance suite (npm)
	$(INTEROP)/conformance/run.sh

.PHONY: model
model: ## Search the protocol with SPIN, and show that each of its rules is needed
	jetstream/model/check.sh

.PHONY: bench
bench: build ## Measure the workloads on this machine: RUNS=2000
	@for workload in w1 w2; do for concurrency in 1 64; do \
		$(BIN) bench $$workload --runs $(RUNS) --concurrency $$concurrency -o json </dev/null; \
	done; done

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME=30s
	@for dir in $$(grep -rlE --include='*_test.go' '^func Fuzz' $(SOURCES) | xargs -r -n1 dirname | sort -u); do \
		for name in $$($(GO) test -list '^Fuzz' ./$$dir | grep '^Fuzz'); do \
			echo "$$dir $$name"; \
			$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) ./$$dir; \
		done; \
	done

.PHONY: chaos
chaos: ## Kill real processes under load, ROUNDS=20 times
	$(GO) test -v -run 'Chaos|Kill' -count=$(ROUNDS) -timeout 4h $(SIM) ./services/cmd/weir

.PHONY: soak
soak: ## Simulate SEEDS=100000 seeds from SEED on, and ten times the races, forgeries and random events of the tests
	$(GO) test -count=1 -timeout 72h $(SIM) -run TestSimulation -weir.seeds=$(SEEDS) -weir.seed=$(SEED)
ifneq ($(SEEDS),1)
	$(GO) test -count=1 -timeout 24h $(SIM) -run 'Races|TestAttack15' -weir.rounds=10000 -weir.killed=10000 -weir.forged=100000
	$(GO) test -count=1 -timeout 24h $(SIM) -run DeadlinesAtOnce -weir.deadlines=10000
	$(GO) test -count=1 -timeout 24h ./services/approval -run TestB8_1GateFollowsTheModel -weir.model=200000
endif

.PHONY: vuln
vuln: ## Look for known vulnerabilities (asks the Go vulnerability database)
	$(TOOL) govulncheck ./...

# Cheapest first, so that a mistake shows early.
CI_STEPS := verify build run lint test interop model race

.PHONY: ci
ci: ## Everything a change must pass, cheapest first
	@for step in $(CI_STEPS); do \
		printf '\n==> make %s\n' "$$step"; SECONDS=0; \
		$(MAKE) "$$step" </dev/null || { printf '==> make %s failed after %ss\n' "$$step" "$$SECONDS"; exit 1; }; \
		printf '==> make %s passed in %ss\n' "$$step" "$$SECONDS"; \
	done

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin coverage
