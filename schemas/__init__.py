"""The Avro schemas of Turnlog's topics: a contract with data teams, one record a file under `avro/`.

Fields may be added and union branches appended; the history is append-only and its compatibility is checked.
"""
