"""Agents tested without a server: a gateway in memory, a person to talk as, and a clock to turn.

    async def test_it_asks_before_it_refunds():
        async with AgentHarness(agent) as person:
            asked = await person.say("refund order 7")
            assert asked.question == "Refund 249.90?"
            done = await person.answer("Approve")
            assert done.text == "Refunded."

The agent is the one that is served in production, unchanged: its handlers, its settings, the SDK's own code from the
frame on. What differs is only that frames travel through memory.
"""

from turnlog.testing.answer import Answer, Asked
from turnlog.testing.clock import Clock
from turnlog.testing.harness import AgentHarness
from turnlog.testing.own import OwnConversation
from turnlog.testing.person import Person

__all__ = ["AgentHarness", "Answer", "Asked", "Clock", "OwnConversation", "Person"]
