"""What the Fleet page and `quintain top` show: a model of the fleet fed by events, snapshots and service cards."""
