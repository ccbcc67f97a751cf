"""The command ``quintain``: it composes the services, and is the only one that knows them all."""
