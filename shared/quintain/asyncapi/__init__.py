"""The wire as an AsyncAPI 3 document, made from the routes, the topology and the contracts that are on the wire.

Nothing is written twice: a route, a queue or a field that changes is changed here too. What the document says is what
the services do; a client does the opposite.
"""
