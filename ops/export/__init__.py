"""Export: the journal's tables as Parquet, CSV, JSON lines, Delta or Iceberg, each row exactly once.

`run` reads a history, folds it (`turnlog.data.fold`) and commits increments to a `target`, which keeps its own
positions in the same transaction as the rows. Whoever dies anywhere is followed by the next run, which goes on from
there.
"""
