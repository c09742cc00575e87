"""The gateway: HTTP, WebSocket and SSE over one port, for people and for agents.

It writes intake, tails the journal read-committed and answers only what was committed. Any gateway can show any
conversation.
"""

from connectors.gateway.app import run

__all__ = ["run"]
