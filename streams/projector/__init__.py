"""The read model: journal entries become rows in Postgres that people and programs ask for.

`rows.py` is the pure mapping, `store.py` writes it with the position it speaks of, `order.py` and `writer.py` take the
journal in order and nothing twice, `read.py` answers questions. `streams/app.py` is the process.
"""
