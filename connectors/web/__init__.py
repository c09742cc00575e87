"""The web chat page: static files that the gateway serves, and that speak the protocol to it as any client does."""
