"""Signed webhooks for edgeoutbox: each call made at most once, or repeated with one id where the receiver deduplicates.

`docs/adapters/webhook.md` says what it promises and how it is configured.
"""

from edgeoutbox_webhook.adapter import WebhookAdapter
from edgeoutbox_webhook.calls import Webhook
from edgeoutbox_webhook.endpoints import Endpoint
from edgeoutbox_webhook.signing import webhook_id

__all__ = ["Endpoint", "Webhook", "WebhookAdapter", "webhook_id"]
