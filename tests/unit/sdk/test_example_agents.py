"""The one-file examples, without a server: with the harness, and with models that cost nothing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from turnlog.testing import AgentHarness

pytestmark = pytest.mark.unit

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module of its own, as it is when it is run."""
    monkeypatch.setenv("AGENTS_SECRET", "s3cret")
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where its annotations are looked up
    spec.loader.exec_module(module)
    return module


def needs(module: str, extra: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"the extra `{extra}` is not installed")


async def test_a_refund_is_asked_for_and_the_question_outlives_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = AgentHarness(example("refund_agent", monkeypatch).agent)
    async with harness as person:
        asked = await person.say("refund order 7")
        assert asked.question == "Refund 249.90 for order 7?"
        assert [action["label"] for action in asked.asks[0].actions] == ["Approve", "Reject"]
        await harness.kill()
        assert (await person.say("Approve")).text.startswith("Done: 249.90 is on its way back.")
        assert [tool["name"] for tool in (await person.say("refund order 8")).tools] == ["get_order"]
        assert person.transcript[-1] == ("bot", "I know no order 8.")


async def test_a_refund_that_is_rejected_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async with AgentHarness(example("refund_agent", monkeypatch).agent) as person:
        await person.say("refund order 7")
        assert (await person.answer(answer=False)).text == "Then I leave it."


async def test_a_function_answers_people_and_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with AgentHarness(example("function_agent", monkeypatch).agent) as person:
        assert (await person.say("17 25")).text == "That makes 42."
        assert (await person.invoke(data={"numbers": [17, 25]})).value == {"sum": 42}


@needs("langgraph", "langgraph")
async def test_a_langgraph_graph_streams_asks_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from langchain_core.language_models import GenericFakeChatModel  # noqa: PLC0415 - an extra
    from langchain_core.messages import AIMessage  # noqa: PLC0415

    module = example("langgraph_agent", monkeypatch)
    said = ["It is winter.", "It is looked into."]
    model = GenericFakeChatModel(messages=iter([AIMessage(text) for text in said]))
    async with AgentHarness(module.agent_of(module.graph_of(model))) as person:
        pieces = [piece async for piece in person.stream("what season is it?")]
        assert len(pieces) >= 1
        assert "".join(pieces) == "It is winter."
        asked = await person.say("a refund, please")
        assert asked.question == "Shall I look into a refund?"
        assert (await person.say("yes")).text == "It is looked into."
        await person.say("a refund, please")
        assert (await person.answer(answer=False)).frames[0]["type"] == "interrupt_resolved"
        assert person.transcript[-1] == ("user", "a refund, please")


@needs("pydantic_ai", "pydantic-ai")
async def test_a_pydantic_ai_agent_streams_uses_its_tool_and_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    from pydantic_ai.messages import ModelMessage  # noqa: PLC0415 - an extra
    from pydantic_ai.models.test import TestModel  # noqa: PLC0415

    module = example("pydantic_ai_agent", monkeypatch)
    model = module.model_of(None)
    with model.override(model=TestModel(custom_output_text="It is on its way.")):
        async with AgentHarness(module.agent_of(model)) as person:
            answer = await person.say("where is order 7?")
            assert answer.text == "It is on its way."
            assert [tool["status"] for tool in answer.tools] == ["completed"]
            assert (await person.say("thanks")).text == "It is on its way."

    class Seen:
        role, text = "user", "hello"

    history: list[ModelMessage] = module.remembered([Seen()])
    assert [getattr(part, "content", None) for message in history for part in message.parts] == ["hello"]
