"""The fault suite on real servers and real processes: a seeded schedule of faults, then the invariants.

schedule    which fault comes when: a pure function of the seed
proxy       TCP between one process and one server, where connections are cut, held, delayed; it knows Kafka's frames
place       the stack under test: servers, proxies, worker, gateway, projector and agent processes
nemeses     how each fault is done and undone
people      those who talk all the while, with idempotency keys; viewers that write down each frame as it came
agent, socket_agent   agent processes, on the SDK and on a bare socket, that write down each delivery
worker      the worker process with failpoints, and for the control with one guard off
seen        what the clients saw against what the journal holds
run         all of it, one after the other
"""
