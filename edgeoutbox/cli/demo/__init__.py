"""`edgeoutbox demo`: real processes, a provider on this machine, and what became of each effect.

`performance` starts, kills and ends processes. For email `producer` enqueues in a process of its own, `stage` runs the
relay and the executor and kills it, `figures` reads the database and the relay's record. For Slack `slack` runs a
server that loses answers, and `slack_figures` reads the database and that server's record. `command` shows it all.
"""
