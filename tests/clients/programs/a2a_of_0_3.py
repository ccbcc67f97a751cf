"""An agent of version 0.3 of the A2A protocol, on the port that is its argument."""

import sys

import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, Part, TextPart
from a2a.utils import new_task


def text(words: str) -> list[Part]:
    return [Part(root=TextPart(text=words))]


class TideDesk(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = context.current_task or new_task(context.message)
        if context.current_task is None:
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        if "Ostend" not in context.get_user_input():
            await updater.requires_input(updater.new_agent_message(text("Which port?")), final=True)
            return
        await updater.start_work(updater.new_agent_message(text("I look at the tables of Ostend.")))
        await updater.add_artifact(text("12:40"))
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


port = int(sys.argv[1])
card = AgentCard(
    name="Tide desk",
    description="",
    version="1",
    url=f"http://127.0.0.1:{port}/",
    skills=[],
    capabilities=AgentCapabilities(),
    default_input_modes=["text"],
    default_output_modes=["text"],
)
handler = DefaultRequestHandler(TideDesk(), InMemoryTaskStore())
uvicorn.run(A2AStarletteApplication(card, handler).build(), port=port)
