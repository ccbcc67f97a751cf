"""The message bus: its interface (`base`) and its transports: RabbitMQ, in-memory, and a socket pair."""
