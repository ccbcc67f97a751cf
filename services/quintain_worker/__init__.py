"""The provider worker: consumes its targets' queues, admits calls, calls the providers, settles and replies.

| word | what it is here | module |
| --- | --- | --- |
| delivery | one message of a target's queue, or one call of a group's message, until it is acknowledged | `consumer` |
| slot | room for one running call of a target | `call_slots` |
| request | what a delivery says: credential, request id, deadline, question | `request` |
| call | what session and request id name, with its message, from its slot to its end | `call`, `call_runner` |
| admission | the ledger's answer whether an attempt at a call may run | `admissions` |
| attempt | one grant of a call to this worker, for one try at the provider | `attempt`, `provider_calls` |
| reply | how a call ends: what its caller is told, and what is settled | `response`, `completion` |

A consumer gives each delivery a slot and hands it as a `Call` to `CallRunner.run`, which tells the story of a call from
top to bottom.
"""
