"""The queue consumers of the metadata service and their composition."""
