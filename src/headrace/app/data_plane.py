"""The data plane of one process, put together: the gateway with all that it owns, and the keys that it goes by."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.app import system_key
from headrace.app.budgets import limits_of
from headrace.app.gateway_parts import Lender, Records, build_gateway, reload_gateway
from headrace.app.report import LoadReport, PlaneReport
from headrace.config import AuthConfig, Config, ServerConfig
from headrace.control.budgets import BudgetAuthority
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, HeadraceError, leaves
from headrace.core.fleet import FleetSnapshot
from headrace.core.ids import KeyId, ReplicaId, TenantId
from headrace.core.isolation import CachePartitions
from headrace.core.leases import Lending
from headrace.core.load import PlaneLoad
from headrace.core.quotas import Limits
from headrace.core.signing import KeySet
from headrace.core.tenant import Principal
from headrace.gateway import certificate
from headrace.gateway.auth import Authenticator, TokenJudge
from headrace.gateway.certificate import CertificateFiles, ServedCertificate
from headrace.gateway.ladder import Ladder
from headrace.gateway.leased_dispatch import LeasedDispatch
from headrace.gateway.listener import Listener, Room, open_sockets
from headrace.policies.health import Circuit
from headrace.policies.levels import Level
from headrace.policies.limits import LevelUse
from headrace.policies.pressure import Pressure
from headrace.policies.shadow import ShadowView
from headrace.stores import pepper, prices, tenants
from headrace.stores.key_ring import KeyEntry
from headrace.telemetry.logs import Log
from headrace.telemetry.merging import MetricsState
from headrace.telemetry.metrics import Metrics
from headrace.telemetry.resources import Resources, raise_descriptor_limit

KEY_CHECK_S = 0.25
USES_EVERY_S = 5.0


@dataclass(slots=True)
class _Next:
    """A version of the configuration that isn't in force yet, and the newest picture of the fleet, which waits for it; None
    once that is in force without it."""

    config: Config
    version: int
    snapshot: FleetSnapshot | None


class DataPlane:
    """Serves the public port. From outside it gets snapshots; it gives records, reports and metrics.

    State: the configuration in force and its version; `_next`, from when another one came until its key ring was read.

    Args:
        config_version: Of the configuration; the first is 1.
        budgets: Their owner, for the only one; it decides everything by itself, exactly.
        key_missing: Gets the name of an identity provider when a token names a key of it that isn't known.
        lender: For one of several.
    """

    def __init__(
        self,
        config: Config,
        data: Path,
        *,
        records: Records,
        budgets: BudgetAuthority | None,
        metrics: Metrics,
        log: Log,
        clock: Clock,
        chance: random.Random,
        key_missing: Callable[[str], None],
        lender: Lender | None = None,
        config_version: int = 1,
    ) -> None:
        self._config = config
        self._config_version = config_version
        self._next: _Next | None = None
        self._is_asked = asyncio.Event()
        self._port_open: Listener | None = None
        self._lender = lender
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._port = 0
        self._tenants = tenants.open_served(data, clock=clock)
        self._prices = prices.open_served(data, clock=clock)
        secret = pepper.load(data / pepper.NAME)
        self._data = data
        self._secret = secret
        self._partitions = CachePartitions(secret, rotation=config.prefix_cache.salt_rotation)
        self._own_key = system_key.entry(data, secret, self._partitions)
        self._auth = Authenticator(
            secret,
            tokens=_tokens(
                config.auth, partitions=self._partitions, missing=key_missing, metrics=metrics, clock=clock
            ),
            clock=clock,
        )
        self._certificate = self._load_certificate()
        self._ladder = self._build_ladder()
        self._gateway = build_gateway(
            config,
            auth=self._auth,
            records=records,
            budgets=budgets,
            ladder=self._ladder,
            metrics=metrics,
            log=log,
            clock=clock,
            chance=chance,
            lender=lender,
            config_version=config_version,
        )
        self._keys_revision = self._key_count = 0
        self._known: set[TenantId] = set()
        self._gateway.keys_are_stale = self._are_keys_stale()
        self._gateway.usage.prices = self._prices.book()
        self._go_by(*self._read_keys(config))

    async def run(self, *, opened: Callable[[int], None]) -> None:
        """Serves, and keeps to the keys in force, until cancelled. `opened` gets the real port.

        Raises ConfigError where the port can't be had.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._serve(opened), name="gateway")
            tasks.create_task(self._watch_keys(), name="keys")

    async def _serve(self, opened: Callable[[int], None]) -> None:
        def remember(port: int) -> None:
            self._port = port
            opened(port)

        try:
            async with asyncio.TaskGroup() as tasks:
                self._port_open = port = self._listener()
                if self._certificate is not None:
                    tasks.create_task(self._certificate.watch())
                await self._gateway.serve(port, opened=remember)
        except* OSError as errors:
            if self._port:
                raise
            server = self._config.server
            raise ConfigError(
                f"public port {server.host}:{server.port} can't be opened: {leaves(errors)[0]}; "
                "choose another with --port or `server.port`"
            ) from None

    async def _watch_keys(self) -> None:
        """Keys, limits and prices changed by a command are in force within a second; those that can't be read stay as they are."""
        was_read = True
        is_due = False  # until all of it was read
        uses_due_s = self._clock.now_s() + USES_EVERY_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEY_CHECK_S):
                    await self._is_asked.wait()
            self._is_asked.clear()
            coming = self._next
            try:
                self._gateway.keys_are_stale = await asyncio.to_thread(self._are_keys_stale)
                if self._clock.now_s() >= uses_due_s:
                    uses_due_s = self._clock.now_s() + USES_EVERY_S
                    await asyncio.to_thread(self._tenants.note_uses, self._take_uses())
                is_due = is_due or await asyncio.to_thread(self._tenants.changed) or coming is not None
                if is_due:
                    config = self._config if coming is None else coming.config
                    ring, callers = await asyncio.to_thread(self._read_keys, config)
                    # Read later than the ring, whose revision is what is told to be in force.
                    self._gateway.usage.prices = await asyncio.to_thread(self._prices.book)
                    await self._gateway.reservations.open(
                        self._quotas(ring, callers), revision=self._tenants.ring_revision
                    )
                    # In one turn of the loop: what a request goes by is of one version, all of it.
                    self._switch(coming)
                    self._go_by(ring, callers)
                    is_due = False
                    if coming is None:
                        self._log.event("keys.reloaded", keys=len(ring))
                was_read = True
            except Exception as error:  # noqa: BLE001 -- the task's edge: the service outlives its database
                self._metrics.internal_errors.labels("keys").add()
                if was_read:
                    self._log.event("keys.failing", error=f"{type(error).__name__}: {error}")
                was_read = False
                if coming is not None and coming.snapshot is not None:
                    # The fleet waits for no database; the rest is tried again.
                    self._gateway.publish(coming.snapshot)
                    coming.snapshot = None

    def _take_uses(self) -> dict[KeyId, float]:
        """When which key was used since this was last asked, in Unix seconds."""
        uses, self._gateway.uses = self._gateway.uses, {}
        uses.pop(system_key.KEY_ID, None)  # no key of the store's
        to_wall_s = self._clock.wall_s() - self._clock.now_s()
        return {key_id: moment_s + to_wall_s for key_id, moment_s in uses.items()}

    def _are_keys_stale(self) -> bool:
        """Whether they are a copy of a central database that could not be asked for too long."""
        copied_s = self._tenants.copied_s()
        return copied_s is not None and self._clock.wall_s() - copied_s > self._config.stores.stale_max_s

    def reload(self, config: Config, version: int, snapshot: FleetSnapshot) -> None:
        """That configuration, and what is offered by it, are to be in force as soon as the key ring was read anew; together,
        so that no request goes by two of them."""
        self._next = _Next(config, version, snapshot)
        self._is_asked.set()

    def _switch(self, coming: _Next | None) -> None:
        """Puts it in force. The key ring that was read for it follows in the same turn."""
        if coming is None:
            return
        config = coming.config
        self._config, self._config_version = config, coming.version
        if self._next is coming:  # else yet another one came meanwhile, and has said so
            self._next = None
        self._partitions.rotate(self._secret, config.prefix_cache.salt_rotation)
        self._own_key = system_key.entry(self._data, self._secret, self._partitions)
        pressure = config.pressure
        self._ladder.go_by(
            lag_s_max=pressure.lag_s_max,
            hold_s=pressure.hold_s,
            memory_bytes_max=pressure.memory_bytes_max,
        )
        if self._port_open is not None:
            self._port_open.set_handshake_timeout(config.server.header_timeout_s)
        reload_gateway(self._gateway, config, coming.version)
        if coming.snapshot is not None:
            self._gateway.publish(coming.snapshot)

    def _read_keys(self, config: Config) -> tuple[dict[bytes, KeyEntry], dict[TenantId, Principal]]:
        """The key ring, and where tokens are accepted, every tenant: one without a key may have tokens."""
        workers = 1 if self._lender is None else self._lender.workers
        defaults = config.tenant_defaults.limits
        shadow = config.tenant_defaults.shadow
        ring = self._tenants.key_ring(
            defaults, shadow=shadow, workers=workers, salt_rotation=config.prefix_cache.salt_rotation
        )
        has_tokens = bool(config.auth.issuers)
        return ring, self._tenants.keyless(defaults, shadow=shadow, workers=workers) if has_tokens else {}

    def _go_by(self, ring: dict[bytes, KeyEntry], tenants: dict[TenantId, Principal]) -> None:
        for problem in self._tenants.unreadable:
            self._log.event("keys.failing", error=problem)
        self._auth.replace({**ring, **self._own_key}, tenants)
        self._key_count = len(ring)
        self._forget_gone({entry.principal.tenant for entry in ring.values()} | tenants.keys())
        self._keys_revision = self._tenants.ring_revision
        self._gateway.reservations.go_by(self._quotas(ring, tenants), revision=self._keys_revision)
        if isinstance(self._gateway.dispatch, LeasedDispatch):
            principals = [*tenants.values(), *(entry.principal for entry in ring.values())]
            # Both only grow: whatever limits follow from, of two states of them the later one has the larger sum.
            revision = self._keys_revision + self._config_version
            self._gateway.dispatch.limits_changed(principals, revision=revision)

    def _quotas(self, ring: dict[bytes, KeyEntry], tenants: dict[TenantId, Principal]) -> Limits:
        callers = [*tenants.values(), *(entry.principal for entry in ring.values())]
        agreed = ((caller.tenant, caller.terms) for caller in callers)
        keys = ((caller.tenant, caller.key_id, caller.key_quotas) for caller in callers)
        return limits_of(agreed, keys, hosts=self._config.limits.hosts_max)

    def _forget_gone(self, known: set[TenantId]) -> None:
        """What is kept in memory for tenants that were deleted or erased since the last time; one whose keys have ended is
        still there."""
        gone = {tenant for tenant in self._known - known if not self._tenants.has_tenant(tenant)}
        for tenant in gone:
            self._gateway.idempotency.forget(tenant)
        self._known = (self._known | known) - gone

    def take_keys(self, key_set: KeySet) -> None:
        """An identity provider's keys were looked at."""
        self._auth.take_keys(key_set)

    def publish(self, snapshot: FleetSnapshot) -> None:
        if self._next is not None and self._next.snapshot is not None:
            self._next.snapshot = snapshot
        else:
            self._gateway.publish(snapshot)

    def found(self, replica: ReplicaId) -> None:
        """A probe has found a replica after it had not answered one."""
        self._gateway.dispatch.found(replica)

    def lent(self, message: Lending) -> None:
        """The authority has said something."""
        assert isinstance(self._gateway.dispatch, LeasedDispatch), "only who borrows is lent anything"
        self._gateway.dispatch.received(message)

    @property
    def ticked_s(self) -> float:
        """When the loop last turned, by the clock."""
        return self._gateway.ticked_s

    @property
    def key_count(self) -> int:
        return self._key_count

    async def drain(self) -> int:
        """Takes no new work, waits for what is in progress, cuts what lasts too long; returns how many were cut."""
        return await self._gateway.drain(self._config.server.drain_s)

    def end_drain(self) -> None:
        self._gateway.end_drain()

    def close(self) -> None:
        try:
            self._tenants.note_uses(self._take_uses())
        except HeadraceError as error:
            self._log.event("keys.failing", error=str(error))
        self._tenants.close()
        self._prices.close()

    async def reports(self) -> list[PlaneReport]:
        return [self.report()]

    async def counted(self) -> Sequence[MetricsState]:
        """Nothing is counted outside this process."""
        return ()

    def rows(self) -> list[dict[str, Any]]:
        """There are no workers."""
        return []

    async def limit_uses(self, levels: Sequence[Level]) -> list[LevelUse]:
        """How much of each is in use."""
        return [self._gateway.dispatch.use(level) for level in levels]

    def shadow_view(self, tenant: TenantId) -> ShadowView:
        return self._gateway.dispatch.shadow_view(tenant)

    def report(self) -> PlaneReport:
        gateway, now_s = self._gateway, self._clock.now_s()
        dispatch = gateway.dispatch
        names = {deployment.key: deployment.name for deployment in dispatch.deployments()}
        return PlaneReport(
            is_ready=gateway.is_ready,
            connections=gateway.connection_count,
            in_progress=gateway.in_progress,
            waiting=dispatch.waiting,
            queues={target: dispatch.queue(target) for target in names},
            loads=[
                LoadReport(
                    names[target],
                    target,
                    load.replica.id,
                    load.shared.slots,
                    load.shared.slots_max,
                    load.outstanding,
                    load.health.circuit(now_s),
                    max(0.0, load.health.rest_until_s - now_s),
                    load.health.silence_s(now_s) if load.outstanding and load.health.is_quiet else 0.0,
                )
                for target, load in dispatch.loads()
            ],
            key_count=self._key_count,
            keys_revision=self._keys_revision,
            config_version=self._config_version,
            pressure=self._ladder.verdict.level,
            pressure_reason=self._ladder.verdict.reason,
            busy_subjects=dispatch.busy_subjects() if isinstance(dispatch, LeasedDispatch) else {},
        )

    def load(self) -> PlaneLoad:
        """What its targets and replicas have to do, and how it fared so far."""
        gateway = self._gateway
        return gateway.usage.loads.report(gateway.dispatch, also=gateway.mirrors.loads.counts())

    def fill_gauges(self) -> None:
        """Sets the gauges whose facts the gateway keeps itself."""
        metrics, report = self._metrics, self.report()
        metrics.connections.labels().set(report.connections)
        metrics.tasks.labels().set(len(asyncio.all_tasks()))
        metrics.streams_open.labels().set(len(self._gateway.streams))
        metrics.bodies_reading.labels().set(self._gateway.intake.bodies_reading)
        if self._certificate is not None:
            metrics.tls_expiry_days.labels().set(self._certificate.days_left)
        metrics.websockets.labels().set(self._gateway.websocket_count)
        self._gateway.usage.loads.fill(metrics)
        metrics.queue_length.clear()
        metrics.queue_bytes.clear()
        for deployment in self._gateway.dispatch.deployments():
            queue = report.queues[deployment.key]
            metrics.queue_length.labels(deployment.name).add(queue.length)
            metrics.queue_bytes.labels(deployment.name).add(queue.body_bytes)
        metrics.in_flight.clear()
        metrics.replica_slots.clear()
        metrics.replica_ejected.clear()
        metrics.replica_circuit.clear()
        for load in report.loads:
            metrics.in_flight.labels(load.model, load.replica).set(load.outstanding)
            metrics.replica_slots.labels(load.model, load.replica).set(load.slots)
            metrics.replica_ejected.labels(load.model, load.replica).set(load.circuit is Circuit.OPEN)
            metrics.replica_circuit.labels(load.model, load.replica, load.circuit).set(1)

    def _load_certificate(self) -> ServedCertificate | None:
        """None without TLS. Raises ConfigError where a file is missing or wrong."""
        files = _certificate_files(self._config.server)
        if files is None:
            return None
        return ServedCertificate(files, metrics=self._metrics, log=self._log, clock=self._clock)

    def _listener(self) -> Listener:
        server, lender = self._config.server, self._lender
        port = server.port if lender is None else lender.port
        return Listener(
            open_sockets(server.host, port, is_shared=lender is not None),
            room=Room(server.connections_max, self._ladder.connections_max),
            certificate=self._certificate,
            handshake_timeout_s=server.header_timeout_s,
            metrics=self._metrics,
            log=self._log,
            clock=self._clock,
        )

    def _build_ladder(self) -> Ladder:
        pressure = self._config.pressure
        return Ladder(
            Pressure(lag_s_max=pressure.lag_s_max, hold_s=pressure.hold_s),
            Resources(memory_bytes_max=pressure.memory_bytes_max),
            descriptors_max=raise_descriptor_limit(),
            metrics=self._metrics,
            log=self._log,
        )


def _tokens(
    auth: AuthConfig,
    *,
    partitions: CachePartitions,
    missing: Callable[[str], None],
    metrics: Metrics,
    clock: Clock,
) -> TokenJudge | None:
    """None where no provider's tokens are accepted: then nobody pays for the library that checks signatures."""
    if not auth.issuers:
        return None
    from headrace.gateway.tokens import Tokens  # noqa: PLC0415

    return Tokens(auth.issuers, partitions=partitions, missing=missing, metrics=metrics, clock=clock)


def check_certificate(server: ServerConfig) -> None:
    """Raises ConfigError where a file for TLS is missing or wrong."""
    if (files := _certificate_files(server)) is not None:
        certificate.load(files)


def _certificate_files(server: ServerConfig) -> CertificateFiles | None:
    """None without TLS."""
    if not server.tls_certificate and not server.tls_key:
        return None
    for key, value in (
        ("server.tls_certificate", server.tls_certificate),
        ("server.tls_key", server.tls_key),
    ):
        if not value:
            raise ConfigError(f"`{key}` is missing: TLS needs a certificate and its private key")
    return CertificateFiles(Path(server.tls_certificate), Path(server.tls_key))
