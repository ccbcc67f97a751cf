"""The message bus: its interface (`base`) and its transports: RabbitMQ and in-memory."""
