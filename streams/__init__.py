"""The stream processor: from intake topics to the journal `conversations`, and from the journal to the read model.

`core` decides (pure), `runtime` speaks Kafka, `fence` speaks Postgres; `worker` and `app` wire them into processes.
"""
