"""The commented configuration file that `init` writes."""

import json

_HEAD = """\
# The configuration of edgeoutbox. An unknown key is an error. EDGEOUTBOX_* variables win over this file, flags over
# both. Relative paths start from the folder of this file.

# The database that holds the actions. sqlite+apsw:// is for programs of their own, such as edgeoutbox run.
database = {database}

# How many actions may be under way at once, over all kinds.
# concurrency = 64

# Seconds in which running attempts may finish when edgeoutbox run is told to stop.
# grace = 10

# One table for each kind of action. `adapter` names what carries it out; left out, it is the one of the same name.
[kinds.email]
sender = "Example Shop <mail@example.com>"
"""

_CAPTURE = """
# Nothing is sent: each message becomes a file in this folder. See edgeoutbox captured.
deliver = "capture"
capture_dir = "captured"

# To send, remove the two lines above and name a relay.
# relay = "smtp://mailer@smtp.example.com:587"
# password = { env = "SMTP_PASSWORD" }
"""

_SEND = """
# The relay: smtp:// turns to TLS by STARTTLS, smtps:// is TLS from the first byte; nothing falls back to plaintext.
# security = "plaintext" is for a relay on this machine.
relay = "smtp://mailer@smtp.example.com:587"

# Secrets stand elsewhere: in an environment variable, or { file = "smtp-password" }.
password = { env = "SMTP_PASSWORD" }

# For development, send nothing: each message becomes a file.
# deliver = "capture"
# capture_dir = "captured"
"""

_REST = """
# Seconds that a claim owns an action, and that the relay may take to accept a message.
# lease = 120
# write_window = 60

# Attempts of one action, days that ended actions are kept, emails under way at once.
# max_attempts = 30
# retention_days = 30
# concurrency = 8

# Whether a person must admit each email.
# requires_approval = false

# Posts to Slack, and signed calls to endpoints that payloads name. See edgeoutbox doctor --slack.
# [kinds.slack_post]
# token = { env = "SLACK_TOKEN" }
# channels = ["C0123456789"]
#
# [kinds.webhook.endpoints.billing]
# url = "https://billing.example.com/hooks"
# secret = { env = "BILLING_SECRET" }
"""


def configuration_text(database: str, *, capture: bool) -> str:
    """The file's text for this database; with `capture` nothing is sent."""
    quoted = json.dumps(database)  # a basic string of TOML is one of JSON
    return _HEAD.format(database=quoted) + (_CAPTURE if capture else _SEND) + _REST
