"""The sidecar: one process that carries out what other programs enqueued, as a configuration file says.

`configuration` reads `edgeoutbox.toml` and `EDGEOUTBOX_*`, `references` resolves the secrets that it names, `plugins`
finds and makes the adapters, `database` and `health` look at the database without changing it, `service` runs until
it is told to stop, and `logs` writes what happened, one line each.
"""

from edgeoutbox.sidecar.configuration import Configuration, KindTable, load
from edgeoutbox.sidecar.plugins import ConfigurableAdapter, make_adapters

__all__ = ["ConfigurableAdapter", "Configuration", "KindTable", "load", "make_adapters"]
