"""An agent that speaks A2A: `python a2a_agent.py 9998`."""

import sys

import uvicorn
from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard
from plain_function import TIDES
from starlette.applications import Starlette


class Desk(AgentExecutor):
    async def execute(self, context, event_queue):
        if (task := context.current_task) is None:
            await event_queue.enqueue_event(task := new_task_from_user_message(context.message))
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        if (port := next((port for port in TIDES if port in context.get_user_input()), None)) is None:
            await updater.requires_input(updater.new_agent_message([new_text_part("Which port?")]))
        else:
            await updater.start_work(updater.new_agent_message([new_text_part(f"I look at the tables of {port}.")]))
            await updater.add_artifact([new_text_part(TIDES[port])])
            await updater.complete()

    async def cancel(self, context, event_queue):
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


handler = DefaultRequestHandler(Desk(), InMemoryTaskStore(), AgentCard(capabilities=AgentCapabilities()))
uvicorn.run(Starlette(routes=create_jsonrpc_routes(handler, "/")), port=int(sys.argv[1]))
