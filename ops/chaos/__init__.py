"""The fault suite on real servers and real processes: a seeded schedule of faults, then the invariants.

schedule    which fault comes when: a pure function of the seed
network     a process's own network namespace, in which the kernel drops packets
proxy       TCP between one process and one server, where connections are cut, held, delayed; it knows Kafka's frames
databases   PostgreSQL and its failover to a standby; `backups`: its restore, and the ends of its sessions
place       the stack under test: servers, proxies, worker, gateway, projector and agent processes
nemeses     how each fault of processes and network is done and undone; `outages`: those of the servers
people      those who talk all the while, with idempotency keys; `viewers` write down each frame as it came
agent, socket_agent   agent processes, on the SDK and on a bare socket, that write down each delivery
worker, server        worker and gateway with `failpoints`, each on a `clock` of its own; a worker keeps a `diary`
guards      for the control: one guard of the product taken out of the workers
seen        what the clients saw against what the journal holds
writers     what workers wrote down against what leases and checkpoints promise
promises    what the logs show besides the audit: the order of the intake, who was let expire, fences a minute
probe, lag  what must hold once all is quiet: a slow reader delays nobody, nothing is left in the intake
run         all of it, one after the other
"""
