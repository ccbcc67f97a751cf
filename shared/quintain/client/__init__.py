"""The SDK: an evaluator's side of the bus. `Client` speaks with a session's token, `Admin` with the admin's."""
