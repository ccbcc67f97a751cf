"""The HTTP gateway: translates requests of the OpenAI, Anthropic and AgentV APIs into calls over the broker.

The gateway holds no provider key and no admin token; every request carries its own token. A request goes through
`server`, `access_log` and `app` to its endpoint, in `apis` or `fleet_page`, which asks `auth` for the client of its
token and `bodies` for what was sent; `calls`, `answer_encoder` and `response_writer` make its calls and write what
comes back.
"""
