"""The configuration file ``quintain.yaml``: the targets and how each is reached (``docs/configuration.md``).

Loading a file does not read the environment; `Config.resolve` substitutes environment variables.
"""
