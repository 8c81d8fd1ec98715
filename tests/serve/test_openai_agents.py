"""OpenAI's Agents SDK, unmodified: an agent with a tool, by responses and by chat completions, streamed and not."""

import asyncio

import pytest
from local_server import serving
from test_served_thinking import CALL, thinker

agents = pytest.importorskip("agents", reason="the package openai-agents is not installed")
openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")

MODELS = {"responses": "OpenAIResponsesModel", "chat": "OpenAIChatCompletionsModel"}


def agent_of(client, kind, seen):
    """Return an agent with a tool that notes its calls."""

    @agents.function_tool
    def weather(city: str) -> str:
        """Tell the weather."""
        seen.append(city)
        return "sunny"

    model = getattr(agents, MODELS[kind])(model="fake", openai_client=client)
    return agents.Agent(name="Guide", instructions="Be brief.", tools=[weather], model=model)


async def run(server, kind, streamed):
    """Return the last text of an agent, and the calls of its tool."""
    agents.set_tracing_disabled(True)
    seen = []
    async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        agent = agent_of(client, kind, seen)
        if not streamed:
            return (await agents.Runner.run(agent, "How is the weather in Bonn?")).final_output, seen
        result = agents.Runner.run_streamed(agent, "How is the weather in Bonn?")
        names = [event.name async for event in result.stream_events() if event.type == "run_item_stream_event"]
        assert [name for name in names if "tool" in name] == ["tool_called", "tool_output"]
        return result.final_output, seen


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_an_agent_calls_its_tool_and_answers(kind, streamed):
    with serving(thinker("I look it up.</think>" + CALL, "I know.</think>It is sunny.")) as server:
        text, seen = asyncio.run(run(server, kind, streamed))
    assert (text.strip(), seen) == ("It is sunny.", ["Bonn"])
