"""What shows and watches a deployment: Prometheus rules, Grafana dashboards, a trace collector; all data but `build`.

`docs/how-to/operate.md` says how they are put to use, `docs/runbooks` what to do when a rule fires.
"""
