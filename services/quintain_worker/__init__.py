"""The provider worker: consumes its targets' queues, admits calls, calls the providers, settles and replies.

| word | what it is here | module |
| --- | --- | --- |
| delivery | one message of a target's queue, or one call of a group's message, until it is acknowledged | `delivery` |
| request | what a delivery says: credential, request id, deadline, question | `request` |
| call | what session and request id name, and the message that holds its body while it is in flight here | `inflight` |
| slot | room for one running call of a target | `consumer` |
| admission | the ledger's answer whether an attempt at a call may run | `admissions` |
| attempt | one grant of a call to this worker: its tries at the provider, and what they were billed | `attempt` |
| completion | the end of a call: its settle confirmed, then its reply, then its acknowledgement | `completion` |

A consumer (`consumer`) starts a `DeliveryHandler` for each delivery, which takes it through the others in this order.
"""
