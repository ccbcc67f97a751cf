"""Builds the AsyncAPI 3 document of the AMQP interface from the routes, the topology and the message contracts.

The document describes what the services do (receive a request, send a reply); a client does the opposite.
"""
