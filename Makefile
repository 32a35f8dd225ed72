# Everything a developer or CI runs. Needs sh, make and python3 >= 3.11; the rest goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.installed
TESTS ?= tests
WORKERS ?= 3
SPREAD = -n $(WORKERS) --dist loadfile
BOM := cyclonedx-bom==7.5.0
PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
PROGRAM = $(PREFIX)/lib/sglang-supervisor
STAGED = $(DESTDIR)$(PROGRAM)

.PHONY: help venv demo test check format slow soak faults fuzz mutants real bench docs screenshots wheel dist lock install files constraints clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

venv: $(STAMP) ## make .venv with the pinned packages

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cannot make $(VENV): Python 3.11 or newer is needed, $(PYTHON) is " + sys.version.split()[0])'
	@echo 'making $(VENV), an environment of its own (once; some seconds)'
	@$(PYTHON) -m venv $(VENV)
	@echo 'installing the pinned packages into $(VENV) (once, from the package index; one to three minutes, silently)'
	@$(PIP) install --quiet --constraint constraints.txt hatchling editables
	@$(PIP) install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@

demo: $(STAMP) ## two servers of the bundled fake engine, one of which stalls
	@$(BIN)/sglsup demo $(DEMO_ARGS)

test: $(STAMP) ## the fast suite, in WORKERS processes
	$(BIN)/python -m pytest $(SPREAD) $(TESTS)

check: $(STAMP) ## formatter, linter, types, floors, generated docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict supervisor bench
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check

format: $(STAMP) ## apply the formatter and the linter's safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

slow: $(STAMP) ## the tests that take longer
	$(BIN)/python -m pytest $(SPREAD) -m slow --timeout 300 $(TESTS) || [ $$? -eq 5 ]  # 5: no test has the marker

soak: $(STAMP) ## random histories of whole hosts: MINUTES=5
	$(BIN)/python -m tests.fleet.soak --minutes $(or $(MINUTES),5)

faults: $(STAMP) ## the fault matrix, thoroughly, into docs/faults.md (some minutes; root for all of it)
	$(BIN)/python -m tests.faults.report

fuzz: $(STAMP) ## coverage-guided fuzzing of whatever reads other people's bytes: SECONDS=120 TARGETS="log http"
	$(BIN)/python -m bench.peers || true  # without the fuzzer the first target says so
	for target in $(or $(TARGETS),log config converter model xmlrpc http saved notes journal); do \
	    $(BIN)/python -m tests.fuzz.run $$target --seconds $(or $(SECONDS),120) --folder build/fuzz/$$target || exit 1; done

mutants: $(STAMP) ## small mistakes in the deciding core that no test notices: EACH=20 MODULES="restart health"
	$(BIN)/python -m tests.mutants.run $(MODULES) --each $(or $(EACH),0)

real: $(STAMP) ## a real SGLang on the CPU, supervised from end to end
	$(BIN)/python tests/real/setup_sglang_cpu.py || [ $$? -eq 75 ]
	$(BIN)/python -m pytest -m real -rfEsP --timeout 900 tests/real

bench: $(STAMP) ## measurements, each beside a peer; all of them make docs/benchmarks.md
	$(BIN)/python -m bench.run $(if $(BENCH_ARGS),$(BENCH_ARGS),--report docs/benchmarks.md)

docs: $(STAMP) ## write the generated parts of docs/
	$(BIN)/python docs/generate.py

screenshots: $(STAMP) ## pictures of the status page for docs/ (needs chromium)
	$(BIN)/python -m tests.web.screenshots docs/screenshots

wheel: $(STAMP) ## build dist/*.whl
	$(BIN)/python -m build --wheel --no-isolation

# The time inside the archives is that of the last commit, so that everybody builds the same bytes.
dist: $(STAMP) ## build dist/*.whl and dist/*.tar.gz, the same bytes everywhere
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)} \
	    $(BIN)/python -m build --no-isolation
	sha256sum dist/*

lock: $(STAMP) ## build/lock.txt (hashes of everything that is installed) and build/sbom.json (CycloneDX)
	mkdir -p build
	$(PIP) install --quiet --dry-run --ignore-installed --report build/report.json --constraint constraints.txt .
	$(BIN)/python .ci/lock.py < build/report.json > build/lock.txt
	[ -x build/bom/bin/cyclonedx-py ] || $(PYTHON) -m venv build/bom
	build/bom/bin/python -m pip --disable-pip-version-check install --quiet '$(BOM)'
	build/bom/bin/cyclonedx-py requirements build/lock.txt --pyproject pyproject.toml --output-reproducible \
	    --of JSON -o build/sbom.json

# The environment is made beside the old one and takes its place at once: a daemon that runs from it meets no half of it.
install: files ## program, unit, accounts and an example: PREFIX=/usr/local SYSCONFDIR=/etc DESTDIR=
	rm -rf '$(STAGED).new' '$(STAGED).old'
	$(PYTHON) -m venv '$(STAGED).new'
	'$(STAGED).new/bin/python' -m pip --disable-pip-version-check install --quiet --constraint constraints.txt .
	grep -rlIF '$(STAGED).new' '$(STAGED).new/bin' '$(STAGED).new/pyvenv.cfg' | xargs sed -i 's|$(STAGED).new|$(PROGRAM)|g'
	if [ -e '$(STAGED)' ]; then mv '$(STAGED)' '$(STAGED).old'; fi
	mv '$(STAGED).new' '$(STAGED)'
	rm -rf '$(STAGED).old'
	install -d '$(DESTDIR)$(PREFIX)/bin'
	ln -sfn ../lib/sglang-supervisor/bin/sglsup '$(DESTDIR)$(PREFIX)/bin/sglsup'
	ln -sfn ../lib/sglang-supervisor/bin/sglctl '$(DESTDIR)$(PREFIX)/bin/sglctl'
	@echo 'installed; next: systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload'
	@echo 'then edit $(SYSCONFDIR)/sglang-supervisor/supervisor.toml and systemctl enable --now sglang-supervisor'

files: ## the part of install that is no program: units, accounts, manual pages, completion, an example
	install -d '$(DESTDIR)$(PREFIX)/lib/systemd/system' '$(DESTDIR)$(SYSCONFDIR)/sglang-supervisor/conf.d'
	for unit in service socket; do sed -e 's|/usr/local/|$(PREFIX)/|' -e 's|/etc/|$(SYSCONFDIR)/|' \
	    systemd/sglang-supervisor.$$unit >'$(DESTDIR)$(PREFIX)/lib/systemd/system/'sglang-supervisor.$$unit || exit 1; done
	install -D -m 644 systemd/sysusers.conf '$(DESTDIR)$(PREFIX)/lib/sysusers.d/sglang-supervisor.conf'
	install -D -m 644 systemd/tmpfiles.conf '$(DESTDIR)$(PREFIX)/lib/tmpfiles.d/sglang-supervisor.conf'
	install -D -m 644 -t '$(DESTDIR)$(PREFIX)/share/man/man1' docs/man/sglsup.1 docs/man/sglctl.1
	install -D -m 644 -t '$(DESTDIR)$(PREFIX)/share/man/man5' docs/man/sglang-supervisor.toml.5
	for tool in sglsup sglctl; do \
	    install -D -m 644 etc/completion/$$tool.bash '$(DESTDIR)$(PREFIX)/share/bash-completion/completions/'$$tool && \
	    install -D -m 644 -t '$(DESTDIR)$(PREFIX)/share/zsh/site-functions' etc/completion/_$$tool && \
	    install -D -m 644 -t '$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d' etc/completion/$$tool.fish || exit 1; done
	install -m 644 etc/supervisor.toml '$(DESTDIR)$(SYSCONFDIR)/sglang-supervisor/supervisor.toml.example'
	[ -e '$(DESTDIR)$(SYSCONFDIR)/sglang-supervisor/supervisor.toml' ] || \
	    install -m 640 etc/supervisor.toml '$(DESTDIR)$(SYSCONFDIR)/sglang-supervisor/supervisor.toml'

constraints: ## resolve everything anew into constraints.txt
	rm -rf build/pin
	$(PYTHON) -m venv build/pin
	build/pin/bin/python -m pip install --quiet --disable-pip-version-check '.[dev]'
	build/pin/bin/python -m pip freeze --exclude sglang-supervisor > build/pin/constraints.txt
	cp build/pin/constraints.txt constraints.txt

clean: ## remove what the targets above made
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
