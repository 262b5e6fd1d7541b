"""The adapter: from a payload to a result."""

import asyncio
import json
import logging
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

from aiohttp.abc import AbstractResolver

from edgeoutbox import (
    Adapter,
    Attempt,
    Check,
    ConfigurationError,
    Delivery,
    Failed,
    InvalidPayload,
    Kind,
    KindLimits,
    Result,
    StopReason,
    one,
)
from edgeoutbox_webhook.calls import NAME_PATTERN, Webhook
from edgeoutbox_webhook.checks import check_endpoints
from edgeoutbox_webhook.endpoints import Endpoint
from edgeoutbox_webhook.exchange import Exchange
from edgeoutbox_webhook.repeating import Repeating, duration
from edgeoutbox_webhook.settings import Settings
from edgeoutbox_webhook.signing import signature, webhook_id
from edgeoutbox_webhook.verdicts import TooLate, Verdicts
from edgeoutbox_webhook.waits import Rests

log = logging.getLogger("edgeoutbox.webhook")

_SHARE_BEFORE_FENCE = 0.9
_SHOWN = 5


class WebhookAdapter(Adapter[Webhook]):
    """Carries out signed calls to endpoints that are known by name.

    `delivery` is `at_most_once`, or `repeatable` for endpoints that deduplicate on `webhook-id`, for as long as
    `deduplicates_for` says (seconds, or a text such as `24h`). `timeout` is for resolving, connecting and TLS;
    `write_window` for the answer. `cafile` holds the certificates to trust instead of the system's; `resolver` takes
    the place of the system's. The rest are the limits of the kind. Raises `ConfigurationError`.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        *,
        delivery: Delivery | str = Delivery.AT_MOST_ONCE,
        deduplicates_for: float | str | None = None,
        cafile: Path | str | None = None,
        timeout: float = 20.0,
        resolver: AbstractResolver | None = None,
        kind: str = "webhook",
        **limits: Unpack[KindLimits],
    ) -> None:
        if delivery not in {Delivery.AT_MOST_ONCE, Delivery.REPEATABLE}:
            raise ConfigurationError("delivery: choose at_most_once or repeatable")
        if not isinstance(endpoints, Mapping):
            raise ConfigurationError('endpoints: give a mapping, such as {"billing": Endpoint("https://...")}')
        for name, endpoint in endpoints.items():
            if not re.fullmatch(NAME_PATTERN, name):
                raise ConfigurationError("endpoints: a name has letters, digits, - and _, at most 64")
            if not isinstance(endpoint, Endpoint):
                raise ConfigurationError(
                    f"endpoints.{name}: is a {type(endpoint).__name__}; "
                    'give an Endpoint("https://...", secrets=["whsec_..."])'
                )
        if not endpoints:
            raise ConfigurationError("endpoints: name at least one")
        if timeout <= 0:
            raise ConfigurationError("timeout: must be above zero")
        self.kind = Kind(
            kind,
            variants=one(Webhook),
            delivery=delivery,
            **limits,
        )
        if self.kind.lease <= self.kind.write_window:
            raise ConfigurationError("lease: must be longer than write_window, or nothing could ever be sent")
        self._endpoints = dict(endpoints)
        self._repeating = _repeating(self.kind.delivery, deduplicates_for, self.kind.write_window)
        self._cafile = None if cafile is None else Path(cafile)
        self._connect_within = min(timeout, (self.kind.lease - self.kind.write_window) * _SHARE_BEFORE_FENCE)
        self._resolver = resolver
        self._rests = Rests()
        self._tls: ssl.SSLContext | None = None

    @classmethod
    def configure(cls, kind_name: str, settings: Mapping[str, object]) -> "WebhookAdapter":
        """The adapter of a configuration table. Raises `ConfigurationError` naming kind and setting, never a value."""
        read = Settings.read(kind_name, settings)
        try:
            return cls(
                read.make_endpoints(),
                kind=kind_name,
                delivery=read.delivery,
                deduplicates_for=read.deduplicates_for,
                cafile=read.cafile,
                timeout=read.timeout,
                **read.limits(),
            )
        except ConfigurationError as error:
            raise ConfigurationError(f"kind {kind_name}: {error}") from None

    async def execute(self, attempt: Attempt[Webhook]) -> Result:
        """Make the call once."""
        action, payload = attempt.action, attempt.payload
        name = payload.endpoint
        sent_id = webhook_id(self.kind.name, name, action.idempotency_key)
        verdicts = Verdicts(
            kind=self.kind,
            endpoint=name,
            webhook_id=sent_id,
            alone=len(self._endpoints) == 1,
            rests=self._rests,
            now=self._claimed_at(action.lease_expires_at),
            deferrals=max(0, action.epoch - action.attempt),
            inherited_write_at=attempt.inherited_write_at,
            repeating=self._repeating,
        )
        endpoint = self._endpoints.get(name)
        early = verdicts.before_anything(endpoint)
        if early is not None or endpoint is None:
            return early or verdicts.not_configured()
        try:
            body = payload.content(action.created_at)
        except InvalidPayload as error:
            return verdicts.unless_inherited(Failed(StopReason.INVALID_PAYLOAD, str(error)))
        try:
            tls = await self._tls_context()
        except ConfigurationError as error:
            return verdicts.misconfigured(str(error))

        async def fence() -> float:
            window = await attempt.begin_write()
            verdicts.require_time(attempt.write_started_at)
            return window.seconds

        try:
            outcome = await self._exchange(endpoint, tls).post(_headers(sent_id, body, endpoint), body, fence)
        except TooLate:
            return verdicts.too_late()
        return verdicts.of(outcome)

    async def prepare(self, payload: Webhook) -> Webhook:
        """Refuse now what could not be sent. Raises `InvalidPayload`."""
        if payload.endpoint not in self._endpoints:
            raise InvalidPayload("endpoint: is not one of the configured ones")
        payload.content(0)
        return payload

    async def preview(self, payload: Webhook) -> str:
        """Where the call goes, without its path, and the body in a form to read."""
        endpoint = self._endpoints.get(payload.endpoint)
        where = "which is not configured here" if endpoint is None else f"at {endpoint.origin}"
        lines = [f"A signed POST to the endpoint {payload.endpoint}, {where}"]
        if payload.type is not None:
            lines.append(f"Type: {payload.type}")
        return "\n".join([*lines, "", json.dumps(payload.body, indent=2, sort_keys=True, ensure_ascii=False)])

    async def check(self) -> Sequence[Check]:
        """Whether each endpoint can be connected to now; sends nothing."""
        try:
            tls = await self._tls_context()
        except ConfigurationError as error:
            return [Check("tls", ok=False, detail=str(error))]
        return await check_endpoints(self._endpoints, lambda endpoint: self._exchange(endpoint, tls))

    def lane(self, payload: Webhook) -> str:
        """The natural lane of a call: its endpoint, so that an endpoint gets its calls in order, one at a time."""
        return f"{self.kind.name}:{payload.endpoint}"

    def destination(self) -> str:
        """The endpoints by name, with their hosts."""
        shown = [f"{name} ({endpoint.origin})" for name, endpoint in list(self._endpoints.items())[:_SHOWN]]
        more = len(self._endpoints) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")

    def settings(self) -> str:
        """Every setting of the endpoints, URLs and secrets too."""
        endpoints = [
            (name, endpoint.url, endpoint.secrets, endpoint.allow_private, endpoint.allow_http)
            for name, endpoint in sorted(self._endpoints.items())
        ]
        return repr((endpoints, self._cafile))

    def _exchange(self, endpoint: Endpoint, tls: ssl.SSLContext) -> Exchange:
        return Exchange(endpoint, tls=tls, connect_within=self._connect_within, resolver=self._resolver)

    def _claimed_at(self, lease_expires_at: int | None) -> int:
        """When this attempt was claimed, in milliseconds on the database's clock, which its lease was counted from."""
        if lease_expires_at is None:
            return time.time_ns() // 1_000_000
        return lease_expires_at - round(self.kind.lease * 1000)

    async def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = await asyncio.to_thread(_make_tls_context, self._cafile)
        return self._tls


def _repeating(delivery: Delivery, deduplicates_for: float | str | None, write_window: float) -> Repeating | None:
    if delivery is Delivery.AT_MOST_ONCE:
        if deduplicates_for is not None:
            raise ConfigurationError('deduplicates_for: means something only with delivery = "repeatable"')
        return None
    if deduplicates_for is None:
        raise ConfigurationError('deduplicates_for: say how long the endpoints deduplicate, such as "24h"')
    repeating = Repeating(duration(deduplicates_for), write_window)
    if repeating.seconds <= 0:
        raise ConfigurationError("deduplicates_for: must be longer than write_window and a minute for clocks")
    return repeating


def _headers(sent_id: str, body: bytes, endpoint: Endpoint) -> dict[str, str]:
    timestamp = int(time.time())
    return {
        "Content-Type": "application/json",
        "User-Agent": "edgeoutbox",
        "webhook-id": sent_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(sent_id, timestamp, body, endpoint.keys),
    }


def _make_tls_context(cafile: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=cafile)
    except (OSError, ValueError):
        raise ConfigurationError("cafile: cannot be read as certificates") from None
    context.set_alpn_protocols(["http/1.1"])
    return context
