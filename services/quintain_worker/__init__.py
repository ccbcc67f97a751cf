"""The provider worker: consumes its targets' queues, admits calls, calls the providers, settles and replies.

| word | what it is here | module |
| --- | --- | --- |
| delivery | one message of a target's queue, or one call of a group's message, until it is acknowledged | `consumer` |
| place | a call's slot, and while it waits, one of so many of its session | `call_slots`, `session_waits` |
| request | what a delivery says: credential, request id, deadline, question | `request` |
| call | what session and request id name, with its message, from its slot to its end | `call`, `call_runner` |
| admission | the ledger's answer whether an attempt at a call may run | `admissions` |
| attempt | one grant of a call to this worker, for one try at the provider | `attempt`, `provider_calls` |
| reply | how a call ends: what its caller is told, and what is settled | `response`, `completion` |

A consumer knows nothing of a call but `CallRunner.run`, which tells its story from top to bottom.
"""
