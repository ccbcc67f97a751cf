"""The provider worker: consumes its targets' queues, admits calls, calls the providers, settles and replies.

| word | what it is here | module |
| --- | --- | --- |
| delivery | one message of a target's queue, or one call of a group's message, until it is acknowledged | `delivery` |
| request | what a delivery says: credential, request id, deadline, question; parsed once | `request` |
| call | what session and request id name; duplicates of one that is in flight here wait for it | `inflight` |
| attempt | one grant of a call to this worker: its tries at the provider, and what they were billed | `attempt` |
| completion | the end of a delivery: its settle confirmed, then its reply, then its acknowledgement | `completion` |
"""
