# `make` alone prints the tasks. Everything they need comes through the Go toolchain: tools.mod pins the generator and the linters.

GO   ?= go
TOOL := $(GO) tool -modfile=tools.mod

# Where `make dev` keeps its database.
DATA_DIR ?= .dev
# A folder of the public conformance suites; empty: all that this system claims to pass.
FOLDER ?=

.DEFAULT_GOAL := help
.PHONY: help build test quick race pg18 conformance soak faults adversary bench pictures generate golden generated sqlc-diff verify lint fmt dev psql

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## the static binary, dist/ojs-pg
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w -X main.version=$$(git describe --tags --always --dirty 2>/dev/null)" -o dist/ojs-pg ./cmd/ojs-pg

test: ## all tests, on the newest PostgreSQL found here
	$(GO) test ./...

QUICK_DB   := Golden|Grants|Planner|Explained|RowSecurity|Closed|Comment|TestReadmeNames|TestStateMachine|TestEveryDoor|TestRollback|TestLeasesFence|TestWeightsGiveShares
QUICK_HTTP := TestHeaders|TestEnqueueShape|TestFetchAckShapes|TestNack|TestHeartbeat|TestLongPollWokenByACommit|TestEveryRoute|TestContracts

quick: ## the quick tests, a minute on an idle machine: what needs no database, the catalogs, and each verb once, in SQL and over HTTP
	$(GO) test ./internal/names ./internal/jwt ./internal/guard ./internal/jsonbody ./conformance/internal/engine
	$(GO) test ./db -run '$(QUICK_DB)'
	$(GO) test ./internal/http -run '$(QUICK_HTTP)'

race: ## all tests with the race detector
	$(GO) test -race ./...

pg18: ## all tests on PostgreSQL 18, whose binaries are fetched first
	bin=$$($(GO) run ./internal/cmd/fetchpg 18) && OJS_TEST_PG_BIN=$$bin $(GO) test ./...

conformance: ## the public suites; FOLDER=level-0-core for one; OJS_CONFORMANCE_SUITES says where they are
	@suites=$$(cd "$${OJS_CONFORMANCE_SUITES:-.}" && pwd) && [ -n "$$OJS_CONFORMANCE_SUITES" ] || { echo "set OJS_CONFORMANCE_SUITES to the directory of the public suites"; exit 1; }; \
	  cd conformance && OJS_CONFORMANCE_SUITES=$$suites FOLDER=$(FOLDER) $(GO) test -count=1 -run 'TestPublic$$'

soak: ## a minute of producers, workers and a server that die; OJS_SOAK_DURATION for another time
	OJS_SOAK_DURATION=$${OJS_SOAK_DURATION:-1m} $(GO) test -count=1 -v -run 'TestNothingIsLost' ./soak

faults: ## ROUNDS of load in each of which something dies; SEED repeats a campaign, FAULT='kill server' does only that
	OJS_FAULTS_SEED=$(SEED) OJS_FAULTS_ROUNDS=$(or $(ROUNDS),200) OJS_FAULTS_ONLY="$(FAULT)" $(GO) test -count=1 -v -timeout 3h -run 'TestFaults$$' ./soak

limits: ## two minutes of producers at two servers and in eight sessions against limits, of which one is killed; SECONDS=60 for another time
	OJS_LIMITS_SECONDS=$(or $(SECONDS),120) $(GO) test -count=1 -v -timeout 1h -run 'TestLimitsAreExactAcrossServers$$' ./cmd/ojs-pg

adversary: ## what a tenant suffers from one that floods the server; DURATION=60s for another time
	OJS_ADVERSARY_DURATION=$(or $(DURATION),20s) $(GO) test -count=1 -v -timeout 1h -run 'TestNobodyMonopolizes$$' ./soak

bench: ## all benchmarks at their full size, about an hour on an idle machine; the output goes to docs/benchmarks
	scripts/benchmarks

pictures: ## docs/images: measures the shares again, four minutes, and draws the kept results of the benchmarks
	$(GO) run ./internal/cmd/figures fairness
	$(GO) run ./internal/cmd/figures benchmarks

generate: ## internal/sqlcgen from db/queries and the schema
	$(TOOL) sqlc generate

golden: ## golden files, docs/reference/sql-api.md, docs/openapi.yaml, docs/reference/http and db/schema.sql (needs PostgreSQL 15) from the database as it is
	$(GO) test -count=1 ./db -update -run '^TestGolden'
	$(GO) test -count=1 ./internal/http -update -run '^TestGolden'

verify: lint generated ## what CI asks before it runs the tests

generated: sqlc-diff ## fail if something generated is out of date
	scripts/unchanged $(MAKE) --no-print-directory golden

sqlc-diff:
	$(TOOL) sqlc diff

fmt: ## format all Go code
	$(TOOL) gofumpt -w $$(git ls-files --cached --others --exclude-standard '*.go' | grep -v '^internal/sqlcgen/')

# Words that leave a reader to guess who or what is meant. Migrations and the changelog are as they were published.
UNCLEAR := whoever|whomever|doorman|and its like

lint: ## formatting, vet, staticcheck, errcheck, lines of at most 140 columns, unclear words, go.mod
	@unformatted=$$($(TOOL) gofumpt -l $$(git ls-files --cached --others --exclude-standard '*.go' | grep -v '^internal/sqlcgen/')); \
	  [ -z "$$unformatted" ] || { echo "not formatted, make fmt:"; echo "$$unformatted"; exit 1; }
	@git ls-files --cached --others --exclude-standard '*.go' db/queries db/migrations db/code | grep -v '^internal/sqlcgen/' | xargs awk \
	  '{ gsub(/\t/, "    ") } length > 140 { print FILENAME ":" FNR ": " length " columns, at most 140"; wide = 1 } END { exit wide }'
	@! git grep -nEi '$(UNCLEAR)' -- '*.go' '*.md' db/code db/queries docs examples ':!CHANGELOG.md' || { echo "say who or what it is"; exit 1; }
	$(GO) vet ./...
	$(TOOL) staticcheck ./...
	$(TOOL) errcheck -ignoretests -exclude .errcheck-excludes ./...
	$(GO) mod tidy -diff
	$(GO) mod verify

dev: build ## a running system on 127.0.0.1:8080, its data in .dev
	dist/ojs-pg dev --data-dir $(DATA_DIR)

psql: ## psql into the database of make dev
	@psql "$$(cat $(DATA_DIR)/admin-url)"
