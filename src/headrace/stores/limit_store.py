"""What is left of the rates that several hosts share? A Valkey or Redis server holds their buckets and lends blocks out of them.

One script decides, by the server's clock, so hosts need neither agree on the time nor lock anything. A bucket that is not there is full; one
that the server has lost is not: its host has heard of the server before, and says so.
"""

from collections.abc import Sequence
from typing import Any

from valkey import asyncio as client
from valkey import exceptions
from valkey.asyncio.connection import SSLConnection, parse_url

from headrace.core.errors import ConfigError
from headrace.policies.shared_rates import Answer, Lent, LimitStoreError, Wish

# A host that was silent for longer is counted no more.
HOST_GONE_S = 15.0
# An answer that comes later than this comes from a connection that is given up.
CALL_LIMIT_S = 2.0

_PREFIX = "headrace:limits:"
_SCHEMES = {"valkey": "valkey", "redis": "valkey", "valkeys": "valkeys", "rediss": "valkeys"}

# KEYS: since when there is anything, the hosts, and the bucket of each wish.
# ARGV: this host or "", whether it has heard of us before, when a host is gone (ms), and six numbers for each wish.
# Ahead is lent what is above half of the bucket: of what is scarce whoever waits must find some, on whichever host.
# Times are milliseconds of the server's clock. A lost bucket is filled from the moment on at which the loss was noticed.
SCRIPT = """
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local since = redis.call('GET', KEYS[1])
if not since then
  since = ARGV[2] == '1' and now or 0
  redis.call('SET', KEYS[1], string.format('%.3f', since))
end
if ARGV[1] ~= '' then redis.call('ZADD', KEYS[2], string.format('%.3f', now), ARGV[1]) end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('(%.3f', now - ARGV[3]))
local answer = {redis.call('ZCARD', KEYS[2])}
for index = 3, #KEYS do
  local at = 4 + (index - 3) * 6
  local per_ms, burst = ARGV[at] / 60000, tonumber(ARGV[at + 1])
  local needed, least = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local ahead, back = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
  local bucket = redis.call('HMGET', KEYS[index], 'left', 'at')
  local left = tonumber(bucket[1]) or 0
  local filled = tonumber(bucket[2]) or tonumber(since)
  left = math.min(burst, left + math.max(0, now - filled) * per_ms)
  left = math.max(-burst, math.min(burst, left + back))
  local spare = math.max(0, math.floor(left - needed - burst / 2))
  local count = math.max(0, math.min(math.floor(left), needed + math.min(ahead, spare)))
  if count < least then count = 0 end
  left = left - count
  redis.call('HSET', KEYS[index], 'left', string.format('%.6f', left), 'at', string.format('%.3f', now))
  redis.call('PEXPIRE', KEYS[index], math.ceil((burst - left) / per_ms) + 60000)
  answer[#answer + 1] = count
  answer[#answer + 1] = string.format('%.6f', left)
end
return answer
"""


class LimitStore:
    """One connection to the server, made when it is first needed and again when it was lost. One call at a time.

    Args:
        url: `valkey://`, `redis://`, and with TLS `valkeys://` or `rediss://`; the password among it is in no message.
        host: This host's name, unlike any other's.
    """

    def __init__(self, url: str, host: str) -> None:
        """Doesn't connect yet. Raises ConfigError for a URL that can't be one, without showing it."""
        self._host = host
        self._has_answered = False
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in _SCHEMES:
            raise ConfigError(
                "`limits.store`: the address must begin with valkey://, redis://, valkeys:// or rediss://"
            )
        try:
            facts = parse_url(f"{_SCHEMES[scheme]}://{rest}")
            pool = client.ConnectionPool.from_url(
                f"{_SCHEMES[scheme]}://{rest}",
                max_connections=1,
                socket_timeout=CALL_LIMIT_S,
                socket_connect_timeout=CALL_LIMIT_S,
                # Its default is to take any name in the certificate.
                **({"ssl_check_hostname": True} if facts.get("connection_class") is SSLConnection else {}),
            )
        except ValueError:
            raise ConfigError("`limits.store`: the address is no URL of a Valkey or Redis server") from None
        self.name = (
            f"{scheme}://{facts.get('host', 'localhost')}:{facts.get('port', 6379)}/{facts.get('db', 0)}"
        )
        self._client: Any = client.Valkey(
            connection_pool=pool
        )  # its types know commands in another form only
        self._digest = ""

    async def lend(self, wishes: Sequence[Wish], *, is_beat: bool) -> Answer:
        """Raises LimitStoreError.

        Args:
            is_beat: Say as well that this host is there.
        """
        keys = [f"{_PREFIX}since", f"{_PREFIX}hosts"]
        values: list[str | int] = [
            self._host if is_beat else "",
            int(self._has_answered),
            int(HOST_GONE_S * 1000),
        ]
        for wish in wishes:
            keys.append(f"{_PREFIX}rate:{wish.key.unit}:{wish.key.subject}")
            values += wish[1:]
        try:
            found = await self._run(keys, values)
        except (exceptions.ValkeyError, OSError) as error:
            raise LimitStoreError(type(error).__name__) from error
        self._has_answered = True
        amounts = found[1:]
        return Answer(
            int(found[0]),
            [Lent(int(count), float(left)) for count, left in zip(amounts[::2], amounts[1::2], strict=True)],
        )

    async def close(self) -> None:
        await self._client.aclose(close_connection_pool=True)

    async def _run(self, keys: Sequence[str], values: Sequence[str | int]) -> list[Any]:
        """The script by its digest; in full where the server doesn't know it, as after a restart."""
        if not self._digest:
            self._digest = await self._client.execute_command("SCRIPT LOAD", SCRIPT)
        try:
            answer = await self._client.execute_command("EVALSHA", self._digest, len(keys), *keys, *values)
        except exceptions.NoScriptError:
            answer = await self._client.execute_command("EVAL", SCRIPT, len(keys), *keys, *values)
        return list(answer)
