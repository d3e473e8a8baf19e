"""`headrace status`: what is running, and how is it doing?"""

import argparse
import http.client
import json
import sys
import time
from pathlib import Path
from typing import Any

from headrace import config
from headrace.cli import common, slo_served
from headrace.control import api
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.outcome import Outcome
from headrace.evidence import numbers
from headrace.stores import directory

ANSWER_LIMIT_S = 5.0
REVISION_SHOWN = 12
REASON_SHOWN = 100
WATCH_EVERY_S = 1.0
# Home, and everything after it gone.
CLEAR = "\x1b[H\x1b[2J"
_WORKER = (
    "worker",
    "state",
    "pid",
    "restarts",
    "reason",
    "connections",
    "in_flight",
    "queued",
    "config_version",
)


def add(commands: Any) -> None:
    parser = common.command(
        commands,
        "status",
        run,
        help="show the running service: its models, replicas and load",
        example="headrace status --json",
        with_json=True,
    )
    parser.add_argument("--watch", action="store_true", help="again every second, until interrupted")


def run(arguments: argparse.Namespace) -> None:
    data = config.data_directory(arguments.data)
    while True:
        service, status = fetch(data)
        status["slos"] = _promises(data, status)
        if arguments.watch and sys.stdout.isatty():
            print(CLEAR, end="")
        if arguments.json:
            common.print_json({**service, **status})
        else:
            _show(service, status)
        if not arguments.watch:
            return
        sys.stdout.flush()
        time.sleep(WATCH_EVERY_S)


def _show(service: dict[str, Any], status: dict[str, Any]) -> None:
    for line in summary(service, status):
        print(line)
    deployments = status.get("deployments", [])
    print()
    common.print_table(
        [_deployment_row(each) for each in deployments],
        headings=("model", "tasks", "revision", "ready", "queued", "wait (s)", "cache isolation"),
    )
    print()
    common.print_table(
        [_replica_row(each, replica) for each in deployments for replica in each.get("replicas", [])],
        headings=(
            *("replica", "model", "state", "reason", "generation", "restarts", "slots", "in flight"),
            "cold start (s)",
        ),
    )
    if promised := status.get("slos"):
        print()
        _show_promises(promised)
    if rollouts := status.get("rollouts"):
        print()
        common.print_table(
            [_rollout_row(row) for row in rollouts],
            headings=("deployment", "wanted", "serves", "rollout", "waits for", "replicas", "scale"),
        )
    if workers := status.get("workers"):
        print()
        common.print_table(
            [tuple(_shown(row.get(name)) for name in _WORKER) for row in workers],
            headings=[name.replace("_", " ") for name in _WORKER],
        )


def _promises(data: Path, status: dict[str, Any]) -> list[dict[str, Any]]:
    """How what `slos/` promises of these deployments was kept lately."""
    names = [each["model"] for each in status.get("deployments", []) if each.get("model")]
    return slo_served.glance(data, names, lambda path: fetch(data, path)[1], now_s=SystemClock().wall_s())


def fetch(
    data: Path,
    path: str = "/admin/v1/status",
    *,
    method: str = "GET",
    fields: dict[str, Any] | None = None,
    limit_s: float = ANSWER_LIMIT_S,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The service's own file and what its admin port answers at that path. Raises HeadraceError when it isn't running.

    Args:
        fields: The members of the body, where there is one.
        limit_s: For the answer.
    """
    file = data / "run" / "service.json"
    try:
        # Asked first: after a kill the port may be somebody else's by now, who must not be sent the token.
        if not directory.is_in_use(data):
            raise FileNotFoundError
        service = json.loads(file.read_text(encoding="utf-8"))
        host, port = service.get("admin_host", "127.0.0.1"), int(service["admin_port"])
    except FileNotFoundError:
        raise HeadraceError(
            f"no service is running on {data}; start one with: headrace up --data {data}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HeadraceError(f"{file}: can't be read ({type(error).__name__}); restart headrace up") from error
    # A wildcard is an address to listen on, not one to connect to.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    headers = {"Authorization": f"Bearer {api.admin_token(file.parent)}"}
    connection = http.client.HTTPConnection(host, port, timeout=limit_s)
    body = None if fields is None else json.dumps(fields).encode()
    try:
        connection.request(method, path, body=body, headers=headers)
        return service, _answer(connection, path=path)
    except ConnectionRefusedError:
        raise HeadraceError(
            f"no service is running on {data}: nothing answers at {host}:{port}; "
            f"start one with: headrace up --data {data}"
        ) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise HeadraceError(
            f"the admin port {host}:{port} gave no answer within {limit_s:.0f} s ({type(error).__name__})"
        ) from error
    finally:
        connection.close()


def _answer(connection: http.client.HTTPConnection, *, path: str) -> dict[str, Any]:
    """The object that is answered. What the caller of the port must change, the operator must."""
    answer = connection.getresponse()
    body = answer.read()
    where = f"the admin port {connection.host}:{connection.port}"
    if answer.status in (400, 404) and (why := _why(body)):
        raise ConfigError(why.removeprefix(": "))
    if answer.status not in (200, 201):
        raise HeadraceError(f"{where} answered {answer.status} at {path}{_why(body)}")
    found = json.loads(body)
    if not isinstance(found, dict):
        raise HeadraceError(f"{where} answered something that is no object")
    return found


def _why(body: bytes) -> str:
    """What the error in an answer says; "" where none can be read."""
    try:
        message: str = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return ""
    return f": {message}"


def summary(service: dict[str, Any], status: dict[str, Any]) -> list[str]:
    """The lines above the tables; keys that a service of another version doesn't send show as `-`."""
    ready = "ready" if status.get("ready") else "not ready"
    host, port = service.get("admin_host", "127.0.0.1"), service.get("admin_port", "-")
    secured = " (https)" if service.get("public_scheme") == "https" else ""
    lines = [
        f"headrace {_shown(status.get('version'))}, {ready}, up {_duration(status.get('uptime_s'))}, "
        f"pid {service.get('pid', '-')}, port {service.get('public_port', '-')}{secured}, admin {host}:{port}",
        f"connections {_shown(status.get('connections'))}, in flight {_shown(status.get('in_flight'))}, "
        f"queued {_shown(status.get('queued'))}",
    ]
    if ended := _ended(status.get("requests") or {}):
        lines.append(f"requests since the start: {ended}")
    pressure = status.get("pressure") or {}
    if pressure.get("reason"):
        lines.append(
            f"under pressure: short of {_shown(pressure['reason'])}, {_given_up(pressure.get('level'))}"
        )
    if asked := status.get("config"):
        lines += _configuration(asked)
    if controller := status.get("controller"):
        lines.append(_controller(controller))
    ledger = status.get("ledger")
    if ledger:
        lines.append(
            f"usage records: {_shown(ledger.get('committed'))} on disk, "
            f"{_shown(ledger.get('backlog'))} waiting, {_shown(ledger.get('failed'))} failures"
        )
    if central := status.get("central"):
        lines += _central(central)
    if store := status.get("limit_store"):
        lines.append(_limit_store(store))
    lines += _cache_risks(status.get("deployments", []))
    return lines


def _cache_risks(deployments: list[dict[str, Any]]) -> list[str]:
    """A line for each kind of risk, with the replicas that it is about."""
    found: dict[str, dict[str, None]] = {}
    for replica in (replica for each in deployments for replica in each.get("replicas", [])):
        if risk := replica.get("cache_risk"):
            found.setdefault(_shown(risk), {})[_shown(replica.get("id"))] = None
    return [f"prompt cache of {', '.join(replicas)}: {risk}" for risk, replicas in found.items()]


def _configuration(asked: dict[str, Any]) -> list[str]:
    """Which version is in force, what waits for a restart, and why the last one was refused."""
    version, oldest = asked.get("version"), asked.get("oldest_version")
    behind = f", version {_shown(oldest)} somewhere" if oldest not in (version, 0) else ""
    lines = [f"configuration version {_shown(version)}{behind}"]
    lines += [f"  {_shown(key)}: restart required" for key in asked.get("restart_required") or ()]
    if problem := asked.get("problem"):
        lines.append(f"  the file as it is now is refused: {_shown(problem)}")
    return lines


def _controller(controller: dict[str, Any]) -> str:
    """Whether it keeps up, and why the last one ended."""
    state = _shown(controller.get("state"))
    if controller.get("is_behind"):
        state += f", behind: silent for {_duration(controller.get('silent_s'))}"
    restarts, reason = controller.get("restarts"), controller.get("reason")
    ended = f", {restarts} restarts" if restarts else ""
    return f"controller {state}, pid {_shown(controller.get('pid'))}{ended}" + (
        f" ({_brief(_shown(reason))})" if reason else ""
    )


def _central(central: dict[str, Any]) -> list[str]:
    """How old the copy of tenants and keys is, how long records have waited, and what is wrong if something is."""
    lines = [
        f"central database {_shown(central.get('name'))}: keys {_duration(central.get('keys_age_s'))} old, "
        f"records {_duration(central.get('ledger_lag_s'))} behind"
    ]
    errors = dict.fromkeys((central.get("keys_error"), central.get("ledger_error")))
    return lines + [f"  {_shown(error)}" for error in errors if error]


def _limit_store(store: dict[str, Any]) -> str:
    """How many hosts share the rates, and whether they do so now."""
    line = f"limits shared by {_shown(store.get('hosts'))} of {_shown(store.get('hosts_max'))} hosts over {_shown(store.get('name'))}"
    if store.get("error"):
        line += (
            f": {_shown(store['error'])} for {_duration(store.get('silent_s'))}; "
            "each host admits its part of every rate"
        )
    return line


def _ended(requests: dict[str, dict[str, int]]) -> str:
    """`40 delivered, 26 refused (26 queue_full)`; reasons only where something went another way than it should."""
    told = []
    for outcome in (each for each in Outcome if each in requests):
        reasons = requests[outcome]
        why = ", ".join(f"{count} {_shown(reason)}" for reason, count in reasons.items())
        told.append(
            f"{sum(reasons.values())} {outcome}" + ("" if outcome is Outcome.DELIVERED else f" ({why})")
        )
    return ", ".join(told)


def _given_up(level: object) -> str:
    return "new work is refused" if level == "refuse" else "connections are not kept alive"


def _deployment_row(deployment: dict[str, Any]) -> tuple[object, ...]:
    revision = str(deployment.get("revision") or "-").removeprefix("sha256:")[:REVISION_SHOWN]
    replicas = deployment.get("replicas", [])
    ready = f"{deployment.get('ready', '-')}/{len(replicas)}"
    tasks = ", ".join(_shown(task) for task in deployment.get("tasks", []))
    wait_s = deployment.get("expected_wait_s")
    return (
        _shown(deployment.get("model")),
        tasks,
        _shown(revision),
        ready,
        deployment.get("queued"),
        f"{wait_s:.1f}" if wait_s else None,
        _shown(deployment.get("cache_isolation")),
    )


def _rollout_row(row: dict[str, Any]) -> tuple[object, ...]:
    """Which version is wanted and which serves, what the change waits for, and why there are so many replicas."""
    rollout, scales = row.get("rollout") or {}, row.get("scale") or {}
    sizes = [
        f"v{version} {_shown(scale.get('ready'))}/{_shown(scale.get('wanted'))}"
        for version, scale in scales.items()
    ]
    reasons = dict.fromkeys(_shown(scale.get("reason")) for scale in scales.values() if scale.get("reason"))
    last = rollout.get("last") or {}
    stage = rollout.get("stage") or last.get("result")
    return (
        _shown(row.get("name")),
        row.get("wanted"),
        row.get("accepted"),
        _shown(stage),
        _shown(rollout.get("waits_for") or (last.get("reason") if stage == last.get("result") else None)),
        ", ".join(sizes) or None,
        ", ".join(reasons) or None,
    )


def _show_promises(found: list[dict[str, Any]]) -> None:
    """What burns fastest comes first."""
    for each in found:
        if "problem" in each:
            print(f"promise {_shown(each['file'])}: {_shown(each['problem'])}")
    rows = [
        (
            each["deployment"],
            promise["name"],
            promise["counted"],
            promise["share"],
            *promise["burn_rates"].values(),
        )
        for each in found
        for promise in each.get("promises", ())
    ]
    if not rows:
        return
    rows.sort(key=lambda row: -(row[-1] or 0.0))
    common.print_table(
        [
            (
                *row[:3],
                numbers.share(row[3]),
                *("-" if rate is None else numbers.number(rate) for rate in row[4:]),
            )
            for row in rows
        ],
        headings=("promised of", "what", "requests (1 h)", "kept", "burn rate (5 min)", "burn rate (1 h)"),
    )


_CIRCUITS = {"open": "ejected", "half_open": "on trial", "slow_start": "starting slowly"}


def _replica_row(deployment: dict[str, Any], replica: dict[str, Any]) -> tuple[object, ...]:
    state = _shown(replica.get("state"))
    if (circuit := replica.get("circuit", "closed")) != "closed":
        state += f" ({_shown(_CIRCUITS.get(circuit, circuit))})"
    if rest_s := replica.get("rest_s"):
        state += f" (rests {rest_s:.0f} s)"
    if silent_s := replica.get("silent_s"):
        state += f" (silent {silent_s:.0f} s)"
    stages = replica.get("cold_start_s") or {}
    cold_start = " + ".join(f"{_shown(name)} {seconds:.1f}" for name, seconds in stages.items() if seconds)
    return (
        _shown(replica.get("id")),
        _shown(deployment.get("model")),
        state,
        _brief(_shown(replica.get("reason") or None)),
        replica.get("generation"),
        replica.get("restarts"),
        _slots(replica),
        replica.get("in_flight"),
        cold_start or None,
    )


def _brief(reason: str) -> str:
    """A server's own words may be long, and one row makes the whole table as wide; `--json` has all of them."""
    return reason if len(reason) <= REASON_SHOWN else f"{reason[: REASON_SHOWN - 3]}..."


def _slots(replica: dict[str, Any]) -> object:
    """How many requests it may run, and of how many where first tokens that came late have lowered that."""
    slots, slots_max = replica.get("slots"), replica.get("slots_max")
    return slots if slots_max in (None, slots) else f"{slots} of {slots_max}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join([f"{count} {unit}" for count, unit in parts if count][:2]) or "0 s"


def _shown(value: object) -> str:
    """Text for a terminal: names come from servers that others run, and may carry control sequences."""
    if value is None:
        return "-"
    return "".join(each if each.isprintable() else "?" for each in str(value))
