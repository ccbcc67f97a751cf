"""The provider worker: consumes the queues of its targets, admits, calls the provider, settles, replies."""
