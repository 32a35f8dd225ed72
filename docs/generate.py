"""Writes the pages of docs/ that are printed from the code; --check compares instead and exits 1 on a difference."""

import argparse
import difflib
import sys
from collections.abc import Callable
from pathlib import Path

import manpages
import reference

from supervisor import runbook
from supervisor.core import lifecycle, tally, traffic
from supervisor.core.gpus import quarantine
from supervisor.core.reasons import MEANING
from supervisor.metrics import accounts, gpus, servers
from supervisor.metrics.families import FAMILIES, Family
from supervisor.metrics.page import ADOPTIONS

LABELS = (
    ("`state` of a server", servers.STATES),
    ("`verdict`", servers.VERDICTS),
    ("`result` of `sglsup_server_probe`", servers.RESULTS_OF_PROBES),
    ("`detector`", servers.DETECTORS),
    ("`kind` of an exit", tally.EXIT_KINDS),
    ("`result` of a start", tally.RESULTS),
    ("`result` of a phase", tally.PHASE_RESULTS),
    ("`result` of a release", (accounts.RELEASED, accounts.GIVEN_UP)),
    ('`outcome` of `check="health"`', [outcome for check, outcome in traffic.CHECKS if check == traffic.HEALTH]),
    ('`outcome` of `check="canary"`', [outcome for check, outcome in traffic.CHECKS if check == traffic.CANARY]),
    ("`stage` of an end", traffic.STEPS),
    ("`result` of a bundle", traffic.BUNDLES),
    ("`result` of an adoption", ADOPTIONS),
    ("`state` of a GPU", gpus.STATES),
    ("`reason` of a quarantine", quarantine.KINDS),
    ("`owner` of memory", (gpus.SERVER, gpus.FOREIGN, gpus.UNATTRIBUTED, gpus.DRIVER)),
    ("`sight`", gpus.SIGHTS),
)

HERE = Path(__file__).resolve().parent


def lifecycle_page() -> str:
    return f"""# Lifecycle of a server

Printed by `make docs` from the table in `supervisor/core/lifecycle.py`; a test compares.

```mermaid
{lifecycle.diagram()}```

{lifecycle.explanation()}"""


def metrics_page() -> str:
    rows = "\n".join(metric_row(family) for family in FAMILIES)
    reasons = "\n".join(f"| `{reason}` | {meaning} |" for reason, meaning in MEANING.items())
    labels = "\n".join(f"| {where} | {', '.join(f'`{one}`' for one in values)} |" for where, values in LABELS)
    return f"""# Metrics

Printed by `make docs` from `supervisor/metrics/families.py`; a test compares. `GET /metrics` answers on the TCP
address (`listen`) and on the control socket, as text or as OpenMetrics by the `Accept` header. It is written from
snapshots: a scrape touches no device, no child and no disk. Times are `_timestamp_seconds`; subtract them from
`time()`.

| metric | type | labels | meaning |
|---|---|---|---|
{rows}

States, phases and verdicts are one series each with 0 or 1, exactly one of which is 1 (no phase is outside a
start). Label sets are there from the beginning with 0, so that `increase()` sees the first event; what an absent
fact would say (a deadline outside a start, an ETA that nobody can tell) is absent. The series of a removed server
are gone with it. Two families begin with their first event, since their sets are too large to be written out: phases
of starts (`sglsup_server_phase_duration_seconds`) and requests (`sglsup_rpc_requests_total`).

Not exported, on purpose: bytes of the log that were dropped (nothing drops any: the server writes its file itself);
counts of each Xid by its number (`increase()` would not see the first one of each; the newest one's number is a
label); what the hardware says of itself (temperature, power, clocks: use a hardware exporter and join by `uuid`);
anything with a process id, a line of a log or a user in a label. There are no exemplars and no `_created` series.

## Labels

| label | values |
|---|---|
{labels}

`check` and `outcome`: a probe is `health`, a small real request to an idle server is `canary` (`error`: nonsense).
`source` is one of `log`, `cpu`, `io`, `gpu`, `engine`; phases are the profile's; an empty `reason` of
`sglsup_gpu_quarantined` belongs to 0.

## Reasons

`reason` and `cause` come from a small set; the classes of failures (`sglctl why`) are finer.

| reason | meaning |
|---|---|
{reasons}

A `cause` of lost time is one of them or `startup` (a start that no failure made necessary), `devices` (its GPUs or
ports were not free), `unready` (it runs and cannot be used). Hours of a start that stalls are the stall's: until a
start ends its time is in `sglsup_server_downtime_pending_seconds`, then it is put down to its cause at once.

Counters survive the daemon's restart, upgrade and crash (`tally.json` in the state directory). What is shown is what
is stored, a second after a start, an end or a change of state and every 15 s while time is being lost, probes are
made or logs grow, so that no counter falls back after a crash. Time during which no daemon ran is nobody's.

## Scraping

`etc/prometheus/scrape.yml` scrapes the daemon and, by `GET /sd`, the engines' own metrics. `/sd` lists an engine
once its metrics have answered the daemon in its present attempt, with the labels `server`, `model` and `gpus`.
Alerts: [alerts.md](alerts.md). Dashboard: `etc/grafana/sglang-supervisor.json`, to be imported as it is. Each of its
queries is tested to have data in a real Prometheus; the file was loaded by the typed dashboard model of Grafana's
Foundation SDK 10.1 without a loss, and was not looked at in Grafana itself.

Join by `server`: `sglsup_server_state == 1` with `sglsup_server_info`; with hardware exporters join by `uuid`
through `sglsup_gpu_info`.

## Probes

| path | 200 when |
|---|---|
| `/livez` | the daemon answers, and no decision is overdue for more than 10 s |
| `/readyz?server=NAME` | requests may be sent to the server; without a name: to every one that is wanted up |
| `/startupz?server=NAME` | its start is over, whatever its readiness now |

Otherwise 503 with a line per failing server, 404 for a name that is not configured. For a container with `sglsup
run --listen 0.0.0.0:9877 -- CMD`:

```yaml
startupProbe:   {{httpGet: {{path: /startupz, port: 9877}}, periodSeconds: 5, failureThreshold: 720}}
readinessProbe: {{httpGet: {{path: /readyz, port: 9877}}, periodSeconds: 5}}
livenessProbe:  {{httpGet: {{path: /livez, port: 9877}}, periodSeconds: 10}}
```

The liveness probe asks about the daemon, not about the server: who restarts a container because its server is slow
throws the evidence away. What is dead or stalled is restarted inside.
"""


def metric_row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.sample}` | {family.kind} | {labels} | {family.help} |"


def reference_page() -> str:
    return reference.page({f"sglsup {name}": parser for name, parser in manpages.COMMANDS.items()})


PAGES: dict[str, Callable[[], str]] = {
    "lifecycle.md": lifecycle_page,
    "metrics.md": metrics_page,
    "reference.md": reference_page,
    "runbooks.md": runbook.page,
    "man/sglsup.1": manpages.sglsup,
    "man/sglctl.1": manpages.sglctl,
    "man/sglang-supervisor.toml.5": manpages.configuration,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is not up to date")
    if parser.parse_args().check:
        return max([check(name) for name in PAGES])
    for name, page in PAGES.items():
        (HERE / name).parent.mkdir(exist_ok=True)
        (HERE / name).write_text(page())
    return 0


def check(name: str) -> int:
    path = HERE / name
    written = path.read_text() if path.exists() else ""
    difference = list(difflib.unified_diff(written.splitlines(), PAGES[name]().splitlines(), f"docs/{name}", "code"))
    if difference:
        print(*difference, f"docs/{name} is not what the code says: run `make docs`", sep="\n", file=sys.stderr)
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
