"""Real servers for tests and benchmarks: RabbitMQ, PostgreSQL and Node.js.

`chooser.running_server` takes or starts a server of one kind; `rabbitmq.RABBITMQ` and `postgres.POSTGRES` describe the
kinds. Nothing here is part of the distribution.
"""
