"""The provider worker: consumes its targets' queues, admits calls, calls the providers, settles and replies.

| word | what it is here | module |
| --- | --- | --- |
| delivery | one message of a target's queue, or one call of a group's message, until it is acknowledged | `consumer` |
| place | a call's slot, and while it waits, one of so many of its session | `call_slots` |
| request | what a delivery says: credential, request id, deadline, question | `request` |
| call | what session and request id name, with its message, from its slot to its end | `call`, `call_runner` |
| admission | the ledger's answer whether an attempt at a call may run | `ledger_client` |
| attempt | one grant of a call to this worker, for one try at the provider | `attempt` |
| reply | how a call ends: what its caller is told, and what is settled | `response`, `call_runner` |

A consumer knows nothing of a call but `CallRunner.run`, which tells its story from top to bottom.
"""
