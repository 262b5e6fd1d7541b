"""The rooms of the soak, `benchmarks.soak`.

`kinds` are its adapters; `providers` is what they reach, and what it remembers. `executor`, `producer` and `neighbours`
are programs of their own. `past` fills the database with what ended a day ago, `samples` says whether what was measured
is flat, and `ledger` whether everything is accounted for.
"""
