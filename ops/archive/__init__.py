"""The archive: a copy of the journal as Parquet, exactly once, that outlives what Kafka keeps.

`layout` says what lies where, `columns` how a record becomes a row and back, `copying` writes, `history` reads,
`checking` proves, `trimming` lets Kafka delete what is safe here. A segment is there once its manifest entry is.
"""
