"""`edgeoutbox demo`: two hundred emails, a killed executor, and what became of each.

`producer` enqueues in a process of its own, `stage` runs the relay and the executor and kills it, `figures` reads the
database and the relay's record, and `command` shows it all.
"""
