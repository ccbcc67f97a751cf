"""The Fleet page: targets, workers and budgets of the running fleet, for holders of the admin token."""
